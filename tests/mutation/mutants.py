"""Mutants of a module: every single change of its arithmetic that a test should notice, found in its syntax tree.

Excluded, because no test should or could notice them:
* docstrings, type hints and names for types, decorators, imports, f-strings, `raise`, `assert` and the arguments of errors: words,
  not arithmetic;
* an `if` whose body only raises, with its condition: validation, which tests of bad input hold;
* numbers below 1e-6 in size (guards against division by zero and rounding), and sizes that only set how work is cut for speed
  (SPEED_NAMES: rows of a chunk, entries of a cache);
* whole modules that draw, print, score or list (SKIPPED).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("analytic", "kernels", "library", "plan")
SKIPPED = {
    "plan/page.py": "draws the page of a plan",
    "plan/svg.py": "draws",
    "plan/flags.py": "words of the engines' command lines",
    "plan/catalogue.py": "a list of models and what each file says",
    "library/collective_question.py": "reads rows of nccl-tests for the fit",
}
SPEED_NAMES = {"CORE_ROWS", "maxsize", "_ROWS_AT_ONCE"}
GUARD = 1e-6
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
CALLED = {"ceil": "floor", "floor": "ceil", "maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: `place` is its number among the sites of its file, `function` the outermost function or <module>, a dot after it for its
    defaults."""

    file: str
    function: str
    line: int
    place: int
    operator: str
    before: str
    after: str

    @property
    def key(self) -> str:
        """A name that stays when lines move: file, function and the change, and which of several equal ones (`#2`) it is."""
        return f"{self.file} {self.function}: {self.before} -> {self.after}"


@dataclass(slots=True)
class _Site:
    owner: Any
    field: str
    index: int | None
    new: Any
    operator: str
    function: str
    line: int
    old: ast.AST

    def put(self, node: Any) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node


def files(root: Path) -> list[str]:
    """The mutated files, relative to the package."""
    found = [p.relative_to(root).as_posix() for package in PACKAGES for p in sorted((root / package).rglob("*.py"))]
    return [name for name in found if name not in SKIPPED and not name.endswith("__init__.py")]


def mutants(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    out = []
    for place, site in enumerate(_sites(tree)):
        before, after = ast.unparse(site.old), ast.unparse(site.new)
        out.append(Mutant(file, site.function, site.line, place, site.operator, _short(before), _short(after)))
    return out


def mutated(root: Path, file: str, place: int) -> ast.Module:
    """The tree of a file with the change of one place."""
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    site = next(s for i, s in enumerate(_sites(tree)) if i == place)
    site.put(site.new)
    return ast.fix_missing_locations(tree)


def order(seed: int, mutant: Mutant, rank: int, sites: int) -> float:
    """Place in the sample: one of each function first, functions with more arithmetic more often (by the root of their sites)."""
    text = f"{seed} {mutant.file} {mutant.function} {mutant.place}".encode()
    share = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2.0**64
    return float((rank + share) / sites**0.5)


def sample(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them, the same for the same seed, spread over all functions."""
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for m in found:
        groups.setdefault((m.file, m.function), []).append(m)
    scored = []
    for members in groups.values():
        shuffled = sorted(members, key=lambda m: order(seed, m, 0, 1))
        scored += [(order(seed + 1, m, rank, len(members)), m) for rank, m in enumerate(shuffled)]
    scored.sort(key=lambda pair: pair[0])
    return sorted((m for _, m in scored[:count]), key=lambda m: (m.file, m.place))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 90 else f"{text[:87]}..."


def _sites(tree: ast.Module) -> Iterator[_Site]:
    yield from _walk(tree, "<module>", None)


def _walk(node: ast.AST, function: str, outer: str | None) -> Iterator[_Site]:
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _words(node, field, child):
                continue
            inside = _named(child, function)
            if field in ("defaults", "kw_defaults"):  # made where the function is defined, not where it runs
                inside = f"{function}."
            for new, operator in _changes(node, field, child):
                yield _Site(node, field, index, new, operator, inside, getattr(child, "lineno", 0), child)
            yield from _walk(child, inside, outer)


def _named(node: ast.AST, function: str) -> str:
    if isinstance(node, ast.FunctionDef) and function.endswith(("<module>", ".")):
        return f"{function.removesuffix('<module>')}{node.name}"
    if isinstance(node, ast.ClassDef) and function == "<module>":
        return f"{node.name}."
    return function


def _type(value: ast.AST) -> bool:
    """Whether an expression names a type, as in Model = str | Path."""
    parts = list(ast.walk(value))
    return any(isinstance(n, ast.Name) and n.id in ("str", "Callable") for n in parts) and not any(isinstance(n, ast.Call) for n in parts)


def _words(node: ast.AST, field: str, child: ast.AST) -> bool:
    """Whether a child is words or validation, by the rules above."""
    if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Global):
        return True
    if field in ("annotation", "returns", "decorator_list", "type_params", "bases", "names"):
        return True
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant | ast.JoinedStr):
        return True
    if isinstance(child, ast.Assign) and _type(child.value):
        return True
    if isinstance(child, ast.If):
        test = ast.unparse(child.test)
        if "TYPE_CHECKING" in test or "isinstance" in test:
            return True
        if all(isinstance(s, ast.Raise) for s in child.body) and not child.orelse:
            return True
    if isinstance(child, ast.Call):
        name = ast.unparse(child.func)
        if name.endswith(("Error", "unknown_name", "cast", "TypeVar")):
            return True
    if isinstance(child, ast.keyword) and child.arg in SPEED_NAMES:
        return True
    if isinstance(child, ast.Assign) and any(isinstance(t, ast.Name) and t.id in SPEED_NAMES for t in child.targets):
        return True
    return isinstance(node, ast.Subscript) and field == "slice"  # which column or row: a wrong one is no wrong sum


def _changes(node: ast.AST, field: str, child: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(child, ast.BinOp) and not _texts(child):
        new = BINARY.get(type(child.op))
        if new is not None:
            yield ast.BinOp(child.left, new(), child.right), "swap operator"
        yield child.left, "drop right operand"
        if not isinstance(child.op, ast.Sub | ast.Div | ast.Pow | ast.FloorDiv | ast.Mod):
            yield child.right, "drop left operand"
    elif isinstance(child, ast.AugAssign) and type(child.op) in BINARY and not isinstance(child.value, ast.List | ast.ListComp):
        yield ast.AugAssign(child.target, BINARY[type(child.op)](), child.value), "swap operator"
        yield ast.Pass(), "drop statement"
    elif isinstance(child, ast.Constant) and _number(child.value) and not isinstance(node, ast.UnaryOp):
        yield from _other_numbers(child, node)
    elif isinstance(child, ast.Compare) and len(child.ops) == 1 and type(child.ops[0]) in COMPARED:
        yield ast.Compare(child.left, [COMPARED[type(child.ops[0])]()], child.comparators), "compare"
    elif isinstance(child, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(child.op, ast.And) else ast.And(), child.values), "and for or"
    elif isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.USub | ast.Not | ast.Invert):
        yield child.operand, "drop sign"
    elif isinstance(child, ast.Call):
        yield from _other_calls(child)
    if field == "test" and isinstance(node, ast.If | ast.IfExp) and not isinstance(child, ast.Compare):
        yield ast.UnaryOp(ast.Not(), child), "negate condition"
    if isinstance(node, ast.Return) and field == "value" and isinstance(child, ast.Call) and len(child.args) > 1:
        yield child.args[0], "first operand"


def _other_numbers(child: ast.Constant, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    value = child.value
    if 0 < abs(value) < GUARD:
        return
    if value == 0:
        yield ast.Constant(value + 1), "constant + 1"
        return
    yield ast.Constant(value * 2), "constant x 2"
    if isinstance(value, float):
        yield ast.Constant(value / 2), "constant x 0.5"
    else:
        yield ast.Constant(value + 1 if value > 1 else 0), "constant + 1" if value > 1 else "constant - 1"


def _other_calls(child: ast.Call) -> Iterator[tuple[ast.AST, str]]:
    name = child.func.attr if isinstance(child.func, ast.Attribute) else child.func.id if isinstance(child.func, ast.Name) else ""
    if name in CALLED:
        of_module = isinstance(child.func, ast.Attribute)
        if not of_module or ast.unparse(child.func).split(".")[0] in ("np", "math", "xp"):
            func = ast.Attribute(child.func.value, CALLED[name], ast.Load()) if of_module else ast.Name(CALLED[name], ast.Load())
            yield ast.Call(func, child.args, child.keywords), f"{name} -> {CALLED[name]}"
        if len(child.args) == 2:
            yield child.args[0], "first operand"
    elif name == "where" and len(child.args) == 3:
        yield ast.Call(child.func, [child.args[0], child.args[2], child.args[1]], []), "swap branches"
        yield child.args[1], "first branch"
        yield child.args[2], "second branch"
    elif name in ("sqrt", "log2", "log", "exp", "rint", "round", "square", "abs") and child.args:
        yield child.args[0], "drop function"
    elif name == "clip" and len(child.args) == 3:
        yield child.args[0], "first operand"


def _texts(node: ast.BinOp) -> bool:
    """Whether an operator joins texts or types, or merges mappings."""
    for side in (node.left, node.right):
        if isinstance(side, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict | ast.ListComp):
            return True
        if isinstance(side, ast.Constant) and (isinstance(side.value, str) or side.value is None):
            return True
    return False


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
