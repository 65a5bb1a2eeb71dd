"""Arithmetic over names, for grids and trip counts given as text: + - * / // %, comparisons, min, max, cdiv. Nothing else runs."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from perfmodel.errors import InputError, shown

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "cdiv": lambda a, b: -(-a // b)}
_LONGEST = 1000


def evaluate(text: str, names: Mapping[str, Any], what: str) -> float:
    """Value of an expression over `names`; raises InputError, saying what it is for, for anything that is not one number."""
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"longer than {_LONGEST} characters")
        value: float = _value(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, OverflowError, RecursionError) as error:
        known = ", ".join(sorted(k for k, v in names.items() if isinstance(v, int | float)))
        reason = "not an expression" if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"{what} {shown(text)}: {reason}; known names: {known}; functions: {', '.join(_FUNCTIONS)}") from None
    return value


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names or not isinstance(names[node.id], int | float):
            raise ValueError(f"{node.id} is not a known number")
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand, names))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return _OPERATORS[type(node.ops[0])](_value(node.left, names), _value(node.comparators[0], names))
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test, names) else node.orelse, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords:
        return _FUNCTIONS[node.func.id](*(_value(a, names) for a in node.args))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cdiv" and len(node.args) == 2:
        return _FUNCTIONS["cdiv"](*(_value(a, names) for a in node.args))  # triton.cdiv
    raise ValueError("only numbers, names, + - * / // %, comparisons, min, max and cdiv are understood")
