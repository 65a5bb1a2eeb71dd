"""The tables of README.md and docs/, each rendered from stored evaluations. `TABLES` has them by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from evaluations import read
from markdown_table import EMPTY, Table, number, percent
from physics_tables import EFFECTS, ceilings, compiled, effects

GPUS = {"a100_sxm4_80gb": "A100", "h100_sxm": "H100", "h200_sxm": "H200", "l40s": "L40S", "rtx_pro_6000": "RTX PRO 6000"}
OTHER_GPUS = {"a40": "A40", "h20": "H20", "h800_sxm": "H800", "rtx_6000_ada": "RTX 6000 Ada"}
OPERATORS = {
    "gemm": "GEMM bf16",
    "attention_prefill": "attention prefill",
    "attention_decode": "attention decode",
    "moe": "MoE bf16",
    "mla_decode": "MLA decode",
    "mla_prefill": "MLA prefill",
    "memory": "memory-bound",
    "moe_kernel": "fused-MoE kernel alone",
    "kernel_gemm": "Triton GEMM configs",
}
SWEEPS = {
    "plain prefill": "plain prefill kernel",
    "plain decode": "plain decode kernel",
    "prefill": "own prefill kernels",
    "decode": "own decode kernels",
    "moe": "own fused-MoE kernels",
}
RUNS = {"TensorRT-LLM tables, a100_sxm4_80gb": "TensorRT-LLM tables, A100", "TensorRT-LLM tables, h100_sxm": "TensorRT-LLM tables, H100"}
Row = Mapping[str, Any]


def render(name: str) -> str:
    """A table as Markdown."""
    return TABLES[name]().markdown()


def rows_of(name: str) -> list[Row]:
    """The rows of a stored evaluation."""
    found: list[Row] = read(name).rows
    return found


def find(rows: Iterable[Row], **wanted: Any) -> Row:
    """The first row with these values; an empty one if there is none."""
    return next((row for row in rows if all(row.get(key) == value for key, value in wanted.items())), {})


def method(name: str) -> str:
    """A method of a ranking in words; the project's own in bold."""
    if name.startswith("perfmodel, "):
        words = {"perfmodel, spec tier": "perfmodel, spec tier", "perfmodel, calibrated tier": "perfmodel, calibrated on its own kernels"}
        return f"**{words.get(name, name)}**"
    return name


def ranking(name: str) -> Table:
    """Regret and error of latency of each method on one sweep."""
    rows = [
        [
            method(row["method"]),
            *(number(row[key]) for key in ("@1", "@3", "@8", "@3 max")),
            percent(row.get("error mean")),
            percent(row.get("error median")),
            percent(row.get("error p90")),
            percent(row.get("coverage"), 0),
        ]
        for row in rows_of(name)
    ]
    return Table(["method", "@1", "@3", "@8", "worst @3", "error mean", "median", "p90", "covered"], rows, [name])


def attention_and_moe() -> Table:
    """Regret of the attention and MoE families, from the gate's figures."""
    stored, rows = read("gate_ranking").rows, []
    for key, words in SWEEPS.items():
        for tier in ("spec", "calibrated"):
            row = stored[key][tier]
            regrets = [number(math.exp(row[f"log regret@{k}"])) for k in (1, 3, 8)]
            rows.append([f"{words}, {row['shapes']} shapes", tier, *regrets, percent(row["error mean"]), percent(row["coverage"], 0)])
    return Table(["sweep", "tier", "@1", "@3", "@8", "error mean", "covered"], rows, ["gate_ranking"])


def autotune_hook() -> Table:
    """Tuning with the hook against timing every config."""
    rows = [
        [
            f"{row['kernel']}, {row['shape']}",
            str(row["configs"]),
            f"{row['hook_us']} us",
            f"{row['hook_s']} s",
            f"{row['all_us']} us",
            f"{row['all_s']} s",
        ]
        for row in rows_of("autotune_hook")
    ]
    return Table(["kernel, shape", "configs", "with the hook", "after", "all configs", "after"], rows, ["autotune_hook"])


def tune() -> Table:
    """What `pm.tune` took and chose on a real GPU."""
    row = rows_of("tune")[0]
    shapes = row["shapes"]
    cells = [
        ["first question, compilation included", f"{row['least s']:.1f} to {row['most s']:.1f} s"],
        ["the same question again", f"{row['asked again s']:.2f} s"],
        ["choice within 0.3 % of the best of the exhaustive sweep", f"{row['within 0.3 %']:.0f} of {shapes} shapes"],
        ["worst choice, over the best", number(row["worst"])],
    ]
    return Table(["tune with k = 5", "figure"], cells, ["tune"])


def over_library() -> Table:
    """Best config measured, over the vendor library."""
    rows = [
        [f"{row['kernel']} {row['dtype']} over {row['library']}", str(row["shapes"]), *(number(row[key]) for key in MEANS)]
        for row in rows_of("over_library")
    ]
    return Table(["best config over library", "shapes", *MEANS], rows, ["over_library"])


MEANS = ("geometric mean", "median", "p90", "worst")


def published_moe() -> Table:
    """Whether published near-best MoE configs are among the first eight."""
    rows = [
        [f"replayed: {row['replayed']}", str(row["count"]), percent(row["shortlist of 8"], 0), percent(row["first 8"], 0)]
        for row in rows_of("published_moe")
        if row["table"] == "near-best" and row["gpu"] == "all"
    ]
    return Table(["asked", "problems", "among the 8 that tuning times", "among the first 8 by rank"], rows, ["published_moe"])


def tuned_moe() -> Table:
    """Where the configs that vLLM and SGLang ship stand in the ranking."""
    rows = [
        [f"{GPUS.get(row['gpu'], row['gpu'])} {row['dtype']}", str(row["count"]), percent(row["place"]), percent(row["slower"] - 1)]
        for row in rows_of("published_moe")
        if row["table"] == "tuned"
    ]
    return Table(["shipped configs of", "count", "place in the ranking, median", "behind our first, median"], rows, ["published_moe"])


def anykernel() -> Table:
    """Ranking from machine code alone."""
    names = [f"anykernel_{part}" for part in ("gemm_bf16", "gemm_fp8", "prefill", "prefill_all", "decode", "decode_all")]
    rows = []
    for name in names:
        row = rows_of(name)[0]
        keys = ("@1", "@3", "@8", "random@1", "random@8")
        every = ", unsteady ones too" if name.endswith("_all") else EMPTY
        rows.append([row["sweep"].replace("_", " ") + every, str(row["shapes"]), *(number(row[key]) for key in keys)])
    return Table(["sweep", "shapes", "@1", "@3", "@8", "random @1", "random @8"], rows, names)


def error_and_cover(row: Row) -> str:
    """'6.3 [85]': mean error in percent, and coverage where it is known."""
    if not row:
        return EMPTY
    covered = f" [{row['covered']:.0f}]" if row.get("covered") is not None else EMPTY
    return f"{row['mean']:.1f}{covered}"


def operator_lines(name: str, key: Callable[[Row], str] = error_and_cover) -> list[tuple[str, list[str]]]:
    """(operator, cells by GPU) of a stored evaluation."""
    rows = rows_of(name)
    return [(what, [key(find(rows, operator=what, gpu=gpu)) for gpu in GPUS]) for what in OPERATORS if find(rows, operator=what)]


def operators_left_out() -> Table:
    """Operators of a GPU that no model saw, beside two constants."""
    baseline = dict(operator_lines("operators_left_out", lambda row: f"{row['two_constants']:.0f}" if "two_constants" in row else EMPTY))
    rows = []
    for what, cells in operator_lines("operators_left_out"):
        rows.append([OPERATORS[what], *cells])
        if any(baseline[what]):
            rows.append(["two constants", *baseline[what]])
    return Table(["GPU left out", *GPUS.values()], rows, ["operators_left_out"])


def operators_given_rows() -> Table:
    """Operators corrected with 200 rows, of all stacks (the gate's figures) or of the one that is asked."""
    gate, rows = read("gate_operators").rows, []
    for what in ("gemm", "attention_prefill", "attention_decode", "moe"):
        found = gate[f"{what} table"]
        shares = {gpu: {key: 100 * found[gpu][key] for key in ("mean", "covered")} for gpu in GPUS if gpu in found}
        rows.append([f"{OPERATORS[what]}, 200 rows", *(error_and_cover(shares.get(gpu, {})) for gpu in GPUS)])
    rows += [[f"{OPERATORS[what]}, 200 rows of the stack", *cells] for what, cells in operator_lines("operators_stack_table")]
    return Table(["given rows of the GPU", *GPUS.values()], rows, ["gate_operators", "operators_stack_table"])


def operators_roughness() -> Table:
    """How rough the measured tables themselves are."""
    names = ("operators_interpolated", "operators_half_of_the_shapes")
    lines = {
        "the whole table interpolated": operator_lines(names[0], lambda row: number(row.get("mean"), 1))[0][1],
        "a row between its two neighbours in m": operator_lines(names[0], lambda row: number(row.get("neighbours"), 1))[0][1],
        "perfmodel with all rows of half of the shapes": operator_lines(names[1], lambda row: number(row.get("mean"), 1))[0][1],
    }
    return Table(["GEMM bf16", *GPUS.values()], [[words, *cells] for words, cells in lines.items()], names)


def operators_weak() -> Table:
    """Operators that are hard on a GPU that was never seen."""
    known, rows = GPUS | OTHER_GPUS, []
    for name in ("operators_moe_kernel", "operators_memory"):
        for row in rows_of(name):
            rows.append([OPERATORS[row["operator"]], str(known.get(row["gpu"], row["gpu"])), f"{row['mean']:.1f} %", cover(row)])
    return Table(["operator, GPU left out", "GPU", "error mean", "covered"], rows, ["operators_moe_kernel", "operators_memory"])


def operators_quantised() -> Table:
    """Quantised GEMM by element type on a GPU that was never seen."""
    rows = [[row["dtype"], GPUS.get(row["gpu"], row["gpu"]), f"{row['mean']:.1f} %", cover(row)] for row in rows_of("operators_quantised")]
    return Table(["GEMM of", "GPU left out", "error mean", "covered"], sorted(rows), ["operators_quantised"])


def cover(row: Row) -> str:
    """Coverage of a row whose figures are in percent."""
    return f"{row['covered']:.0f} %" if row.get("covered") is not None else EMPTY


def stacks() -> Table:
    """How far two stacks are apart on the same operators."""
    rows = []
    for what, words in OPERATORS.items():
        mine = [row for row in rows_of("stacks") if row["operator"] == what]
        if mine:
            apart = [[row["apart_percent"] for row in mine if row["gpu"] == gpu] for gpu in GPUS]
            rows.append([words, *(spread(values) if values else EMPTY for values in apart)])
    return Table(["two stacks differ by", *GPUS.values()], rows, ["stacks"])


def speed() -> Table:
    """What a question costs, with and without the stack's name."""
    named, rows = {row["question"]: row for row in rows_of("speed_stack")}, []
    for row in rows_of("speed"):
        pair = [named.get(row["question"], {}), row]
        cells = [f"{one['ms']:.2f} ms" if one else EMPTY for one in pair]
        cells += [f"{one['table_rows_per_s']:,.0f}" if one.get("table_rows_per_s") else EMPTY for one in pair]
        rows.append([row["question"], *cells])
    head = ["question", "one, stack named", "not named", "rows of a table a second, stack named", "not named"]
    return Table(head, rows, ["speed_stack", "speed"])


def calibration_run() -> Table:
    """Errors before and after the two-minute run."""
    rows = [
        [
            OPERATORS[part["what"]],
            str(part["rows"]),
            percent(part["before"]),
            percent(part["after"]),
            percent(part["coverage"], 0) if part["coverage"] else EMPTY,
        ]
        for part in read("calibration_report").rows["parts"]
    ]
    return Table(["held-out shapes of the run", "rows", "before", "after", "covered"], rows, ["calibration_report"])


def proof() -> Table:
    """The same calibration on rows measured apart from it."""
    rows = [
        [OPERATORS[row["part"]], str(row["rows"]), percent(row["before"]), percent(row["after"]), percent(row["covered"], 0)]
        for row in rows_of("proof")
        if row["regime"] == "all"
    ]
    return Table(["rows of another session", "rows", "before", "after", "covered"], rows, ["proof"])


def proof_ranking() -> Table:
    """How the run ranks exhaustive sweeps."""
    rows = [
        [f"{row['sweep']} {row['dtype']}".strip(), row["model"], str(row["shapes"]), *(number(row[key]) for key in ("@1", "@3", "@8"))]
        for row in rows_of("proof_ranking")
    ]
    return Table(["Triton sweep", "model", "shapes", "@1", "@3", "@8"], rows, ["proof_ranking"])


def collectives() -> Table:
    """Errors of collectives by GPU and implementation, by what the fit did not see; the graph-captured custom all-reduces together."""
    words = {"collectives_sizes": "message sizes", "collectives_counts": "numbers of GPUs", "collectives_spec": "the GPU"}
    rows = []
    for name, left_out in words.items():
        whole = [row for row in rows_of(name) if row["regime"] == "all"]
        for gpu in dict.fromkeys(row["gpu"] for row in whole):
            own = [row for row in whole if row["gpu"] == gpu]
            groups = {COLLECTIVES[row["source"]]: [row] for row in own if row["source"] in COLLECTIVES}
            groups[CUSTOM] = [row for row in own if row["source"] in ("vllm_graph", "sglang_graph")]
            for implementation, part in groups.items():
                if part:
                    figures = [percent(weighted(part, key), 1 if key == "mean" else 0) for key in ("mean", "baseline", "coverage")]
                    count = str(sum(row["n"] for row in part))
                    rows.append([f"{GPUS.get(gpu, gpu)}, {implementation}", left_out, count, *figures])
    return Table(["GPU, implementation", "left out", "rows", "error mean", "bare link", "covered"], rows, list(words))


COLLECTIVES = {"nccl": "NCCL", "torch": "NCCL launched by torch", "torch_graph": "NCCL in a graph"}
CUSTOM = "custom all-reduce in a graph"


def weighted(rows: Sequence[Row], key: str) -> float:
    """Mean over the measured rows that these lines stand for."""
    return float(sum(row["n"] * row[key] for row in rows) / sum(row["n"] for row in rows))


def serving() -> Table:
    """Serving estimates on published runs."""
    rows = [
        [
            f"{RUNS.get(row['runs'], row['runs'])} ({row['rows']})",
            row["figure"].upper() if row["figure"] in ("tpot", "ttft") else row["figure"],
            percent(row["median_error"]),
            percent(row["mean_error"]),
            percent(row["roofline_median_error"], 0),
            percent(row["covered_80"], 0),
        ]
        for row in rows_of("serving")
    ]
    nominal = find(rows_of("serving_nominal"), runs="served H100 runs, concurrency 1-64", figure="ttft")
    rows.append(["the same, nominal lengths and batch limit", "TTFT", percent(nominal["median_error"]), EMPTY, EMPTY, EMPTY])
    return Table(["published runs", "figure", "median", "mean", "roofline, median", "covered"], rows, ["serving", "serving_nominal"])


def memory_logs() -> Table:
    """The memory ledger against start-up logs."""
    rows = [
        [
            f"{row['part'].replace('kv', 'KV cache')}, {row['logs']}",
            str(row["count"]),
            *(f"{row[key]:.2f} %" for key in ("mean", "median", "worst")),
        ]
        for row in rows_of("memory_logs")
    ]
    return Table(["part", "logs", "mean", "median", "worst"], rows, ["memory_logs"])


def headline() -> Table:
    """Each kind of answer in one line, beside what one would do without this project. The letters are explained under the table."""
    plain, any_kernel, operators = rows_of("ranking_plain_bf16"), rows_of("anykernel_gemm_bf16")[0], rows_of("operators_left_out")
    random, spec, datasheet = find(plain, method="random"), find(plain, method="perfmodel, spec tier"), "only the datasheet (a)"
    regrets = [
        ("Triton GEMM: first choice", spec["@1"], random["@1"]),
        ("Triton GEMM: best of the first 8", spec["@8"], random["@8"]),
        ("any kernel, by machine code: first choice", any_kernel["@1"], any_kernel["random@1"]),
    ]
    rows = [[f"{what}, regret", datasheet, number(ours), f"{number(theirs)} (random)"] for what, ours, theirs in regrets]
    for what in ("gemm", "attention_prefill", "attention_decode"):
        mean = {key: spread([row[key] for row in operators if row["operator"] == what]) for key in ("mean", "two_constants")}
        about = [f"{OPERATORS[what]} in libraries, mean error", "other GPUs (b)"]
        rows.append([*about, mean["mean"], f"{mean['two_constants']} (two constants)"])
    decode = find(read("calibration_report").rows["parts"], what="attention_decode")
    before, after = (percent(decode[when]) for when in ("before", "after"))
    rows.append(["attention decode, mean error", "a two-minute run (c)", after, f"{before} (before it)"])
    for row in rows_of("serving")[:2]:
        figure, roofline = row["figure"].replace("tpot", "TPOT"), percent(row["roofline_median_error"], 0)
        about = [f"serving on H100, {figure}, median error", f"{row['rows']} published runs (d)"]
        rows.append([*about, percent(row["median_error"]), f"{roofline} (roofline)"])
    head = ["answer", "what the model saw", "perfmodel", "without it"]
    return Table(head, rows, ())


def spread(values: Sequence[float]) -> str:
    """'6 to 14 %', or '6 %' where both ends are the same."""
    ends = [f"{end(values):.0f}" for end in (min, max)]
    return f"{' to '.join(dict.fromkeys(ends))} %"


TABLES: Mapping[str, Callable[[], Table]] = {
    "headline": headline,
    "ranking-plain-bf16": lambda: ranking("ranking_plain_bf16"),
    "ranking-plain-fp8": lambda: ranking("ranking_plain_fp8"),
    "ranking-own-bf16": lambda: ranking("ranking_own_bf16"),
    "ranking-own-fp8": lambda: ranking("ranking_own_fp8"),
    "attention-and-moe": attention_and_moe,
    "autotune-hook": autotune_hook,
    "tune": tune,
    "over-library": over_library,
    "published-moe": published_moe,
    "tuned-moe": tuned_moe,
    "anykernel": anykernel,
    "operators-left-out": operators_left_out,
    "operators-given-rows": operators_given_rows,
    "operators-roughness": operators_roughness,
    "operators-weak": operators_weak,
    "operators-quantised": operators_quantised,
    "stacks": stacks,
    "speed": speed,
    "calibration-run": calibration_run,
    "proof": proof,
    "proof-ranking": proof_ranking,
    "collectives": collectives,
    "serving": serving,
    "memory-logs": memory_logs,
    "ceilings": ceilings,
    "compiled": compiled,
    **{f"effects-{group}": partial(effects, group) for group in EFFECTS},
}
