"""`perfmodel calibrate` without a further word: measure this machine's GPU, fit, write; and `perfmodel calibrate report`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel import boundary
from perfmodel._resources import layers, user_folder
from perfmodel.cli import output
from perfmodel.cli.progress import Progress
from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.probe import probe_device, write_draft

SUMMARY = "report.json"


def run(
    context: typer.Context,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", help="Seconds of measuring on each GPU.")] = 120.0,
    gpu: Annotated[str | None, typer.Option("--gpu", help="The GPU's name in hwdb (default: ask the driver).")] = None,
    devices: Annotated[str | None, typer.Option("--devices", metavar="0,1", help="Only these devices (default: all of one kind).")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the design: the same seed gives the same list of points.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; measure nothing.")] = False,
    stored: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FILE", help="Fit stored rows; no GPU is needed. May be given again.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Set an earlier run aside instead of going on with it.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--run", "--folder", metavar="FOLDER", help="Where the run's rows are (default: the user's folder).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write (default: where --calibration auto looks).")] = None,
    fit: Annotated[bool, typer.Option("--fit/--no-fit", help="Fit what was measured.")] = True,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="On all GPUs of a Ray cluster; auto: the one of this machine.")
    ] = None,
    from_gpu: Annotated[str | None, typer.Option("--from-gpu", help="With --to-gpu: say what a measured GPU tells of another.")] = None,
    to_gpu: Annotated[str | None, typer.Option("--to-gpu", help="See --from-gpu.")] = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Calibrate this machine's GPU with one short run; call it again and it goes on where it stopped."""
    if context.invoked_subcommand is not None:
        return
    output.check_format(json_, csv_)
    if from_gpu or to_gpu:
        _transfer(from_gpu, to_gpu, json_, csv_)
        return
    if stored:
        _fit_stored(stored, gpu, out, json_, csv_)
        return
    from perfmodel.calibrate.plan import check_budget

    check_budget(budget)  # before a GPU is looked for
    if dry_run:
        _plan(find_gpu(gpu) if gpu else _known(probe_device()), budget, seed, json_, csv_)
    else:
        _measure(gpu, devices, ray, budget, seed, fresh, folder, out, fit, json_, csv_)


def report(
    gpu: Annotated[str | None, typer.Option("--gpu", help="Whose calibration: the user's own, else the shipped one.")] = None,
    folder: Annotated[Path | None, typer.Option("--calibration", help="A calibration's folder instead.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write report.html, report.md and report.json to.")] = Path(),
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Write what a calibration measured and changed: one self-contained page, and the same as Markdown and JSON."""
    output.check_format(json_, csv_)
    if (gpu is None) == (folder is None):
        raise InputError("report needs --gpu NAME or --calibration FOLDER, one of them")
    folders = [boundary.expanded(folder)] if folder else [layer / find_gpu(str(gpu)).name for layer in layers("calibration")]
    path = next((f / SUMMARY for f in folders if (f / SUMMARY).is_file()), None)
    if path is None:
        raise NoAnswerError(_no_report(gpu, folders))
    try:
        summary = boundary.read_json(path)
        with Progress("drawing"):
            written = write_report(summary, boundary.expanded(out))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no report of this version, perhaps half-written ({shown(error)}): calibrate again") from None
    rows = [{"file": str(p), "bytes": p.stat().st_size} for p in written]
    _print(rows, json_, csv_)


def _no_report(gpu: str | None, folders: Sequence[Path]) -> str:
    """Why there is no report, and who has one."""
    if gpu is None:
        return f"no {SUMMARY} in {folders[0]}: only a run of perfmodel calibrate writes one"
    name = find_gpu(gpu).name
    reported = sorted({path.parent.name for layer in layers("calibration") for path in layer.glob(f"*/{SUMMARY}")})
    fitted = any(f.is_dir() for f in folders)
    why = "its models were fitted to tables of rows, not to a run of perfmodel calibrate" if fitted else "nothing was measured on it"
    return (
        f"{name} has no calibration report: {why}; perfmodel calibrate on that GPU writes one; there are reports of "
        f"{', '.join(reported) or 'no GPU'}; perfmodel evaluate operators --gpu {name} scores what is there"
    )


def write_report(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """report.html (with plots where matplotlib is installed), report.md and report.json."""
    from perfmodel.calibrate.report import html, markdown

    try:
        from perfmodel.plot.calibration import figures

        pictures = figures(summary)
    except ImportError:
        print("perfmodel: the page has no plots: pip install 'perfmodel[plot]'", file=sys.stderr)
        pictures = {}
    texts = {"report.html": html(summary, pictures), "report.md": markdown(summary), SUMMARY: json.dumps(summary, allow_nan=False) + "\n"}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}): choose a folder you may write to") from None
    return written


def _known(draft: GpuSpec) -> GpuSpec:
    """hwdb's spec of the GPU that was drafted from its driver; the draft itself, kept in the user's folder, where hwdb has none."""
    try:
        return find_gpu(draft.full_name)
    except InputError:
        path = write_draft(draft, user_folder() / "hwdb")
        print(
            f"perfmodel: {draft.full_name} is not in hwdb: drafted as {path}; check it with perfmodel gpus show {draft.name}",
            file=sys.stderr,
        )
        return draft


def _plan(spec: GpuSpec, budget_s: float, seed: int, json_: bool, csv_: bool) -> None:
    from perfmodel.calibrate.plan import make_plan

    with Progress("choosing points"):
        plan = make_plan(spec, budget_s=budget_s, seed=seed)
    parts = [
        {
            "part": p.name,
            "points": p.points,
            "seconds": round(p.cost_s, 1),
            "share_s": round(p.budget_s, 1),
            "uncertainty_removed": round(p.explained, 3) if p.explained else None,
            "prior_half_width": round(p.prior_half_width, 3) if p.prior_half_width else None,
        }
        for p in plan.parts
    ]
    if json_:
        output.write_json(
            {"gpu": spec.name, "budget_s": budget_s, "seed": seed, "plan": plan.digest, "parts": parts, "points": plan.points}
        )
    elif csv_:
        output.write_csv(plan.points, ("id", "what", "cost_s"))
    else:
        total = sum(p.cost_s for p in plan.parts)
        first = [f"plan {plan.digest} for {spec.name}, seed {seed}: about {total:.0f} s of measuring, of a budget of {budget_s:g} s"]
        output.write_table(parts, head=[*first, "uncertainty_removed: share of the prior's variance, weighted by use", ""])


def _measure(
    gpu: str | None, devices: str | None, ray: str | None, budget_s: float, seed: int, fresh: bool, folder: Path | None,
    out: Path | None, fit: bool, json_: bool, csv_: bool,
) -> None:  # fmt: skip
    from perfmodel.calibrate import cluster, cluster_ray
    from perfmodel.calibrate.plan import make_plan
    from perfmodel.calibrate.run import ROWS, execute, read_states, run_folder, set_aside
    from perfmodel.measure.devices import devices_here

    if ray and devices:
        raise InputError("--devices are this machine's, --ray takes all GPUs of its cluster: give one of them")
    if ray:
        count, part = cluster_ray.connect(ray), (0, 1)
        spec = find_gpu(gpu) if gpu else _known(cluster_ray.draft())
    else:
        here = devices_here()
        chosen, part = cluster.own_share(here, _indices(devices, len(here)))
        spec = find_gpu(gpu) if gpu else _known(probe_device(chosen[0].index))
    folder = run_folder(spec.name, boundary.expanded(folder) if folder else None)
    if fresh and part[1] > 1:
        raise InputError("--fresh is for one process: under torchrun name another --folder, on every host")
    if fresh and (aside := set_aside(folder)):
        print(f"perfmodel: the earlier run is kept in {aside}", file=sys.stderr)
    with Progress("choosing points") as progress:
        plan = make_plan(spec, budget_s=budget_s, seed=seed)

        def say(what: str, done: int, total: int, left_s: float) -> None:
            progress.bar(what, done, total, f"{left_s:.0f} s left, " if left_s else "")

        try:
            if ray:
                rows = cluster_ray.run_shares(plan, folder, count, say=say)
                print("perfmodel: Ray times no collectives: torchrun -m perfmodel.measure.collectives does", file=sys.stderr)
            else:
                execute(plan, folder, chosen, part=part, say=say)
        except KeyboardInterrupt:
            print(f"\nperfmodel: stopped; what was measured is in {folder}: the same command goes on from there", file=sys.stderr)
            raise
    if not ray:
        with Progress("bringing the rows of all GPUs together, timing collectives between them"):
            rows = cluster.gather(folder, chosen)
    if part[0] != 0:
        return
    states = read_states(folder / ROWS)
    for problem in _summary(spec, rows, [], states, budget_s)["bad_state"]:
        print(f"perfmodel: WARNING: {problem}", file=sys.stderr)
    if not fit:
        _print([{"rows": len(rows), "ok": sum(r["status"] == "ok" for r in rows), "folder": str(folder)}], json_, csv_)
        return
    _fit(spec, rows, states, budget_s, out, json_, csv_, [folder / ROWS])


def _indices(text: str | None, count: int) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(p.strip().isdigit() and int(p) < count for p in parts):
        raise InputError(f"--devices {text}: give numbers from 0 to {count - 1}, separated by commas")
    return sorted({int(p) for p in parts})


def _fit_stored(paths: Sequence[Path], gpu: str | None, out: Path | None, json_: bool, csv_: bool) -> None:
    from perfmodel.calibrate.accept import is_gpu
    from perfmodel.calibrate.run import read_states
    from perfmodel.measure.rows import read

    rows: list[dict[str, Any]] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: there is no such file")
        try:
            rows += read(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as rows of a run, JSON lines or parquet ({error})") from None
    if bad := [r for r in rows if not isinstance(r, dict) or "status" not in r or "what" not in r]:
        raise InputError(f"{paths[0]}: {len(bad)} rows lack what or status: these are no rows of a calibration run")
    names = {str(r["gpu_name"]) for r in rows if r.get("gpu_name")}
    if gpu is None and len(names) != 1:
        raise InputError(f"whose rows? they name {', '.join(sorted(names)) or 'no GPU'}: pass --gpu")
    spec = find_gpu(gpu or names.pop())
    if others := [i for i, r in enumerate(rows) if r.get("gpu_name") and not is_gpu(spec, str(r["gpu_name"]))]:
        shown = ", ".join(map(str, others[:5]))
        raise InputError(f"{len(others)} rows of the run ({shown} ...) are of {str(rows[others[0]]['gpu_name'])[:40]}, not of {spec.name}")
    _fit(spec, rows, [s for p in paths for s in read_states(p)], None, out, json_, csv_, paths)


def _fit(
    spec: GpuSpec, rows: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]], budget_s: float | None, out: Path | None,
    json_: bool, csv_: bool, measured: Sequence[Path],
) -> None:  # fmt: skip
    from perfmodel.calibrate.fit import fit_run
    from perfmodel.calibrate.report import provenance_of

    provenance = provenance_of(rows)
    with Progress("fitting") as progress:
        try:
            calibration, outcomes = fit_run(spec, rows, provenance=provenance, progress=progress.bar, workers=os.cpu_count() or 1)
        except KeyboardInterrupt:
            again = shlex.join(["--gpu", spec.name, *(word for path in measured for word in ("--from", str(path)))])
            print(f"\nperfmodel: the fit was stopped, the rows are kept: perfmodel calibrate {again} fits them", file=sys.stderr)
            raise
    summary = _summary(spec, rows, outcomes, states, budget_s)
    folder = boundary.expanded(out) if out else user_folder() / "calibration" / spec.name
    if calibration.models:
        calibration.save(folder)
    write_report(summary, folder)
    found = [
        {
            "part": p["what"],
            "rows": p["rows"],
            "before": p["before"],
            "after": p["after"],
            "coverage": p["coverage"],
            "adopted": p["adopted"],
            "reason": p["reason"] or None,
        }
        for p in summary["parts"]
    ]
    if json_:
        output.write_json(
            {"gpu": spec.name, "folder": str(folder), "bad_state": summary["bad_state"], "ceilings": summary["ceilings"], "parts": found}
        )
    elif csv_:
        output.write_csv(found)
    else:
        head = [f"{spec.name}: {len(calibration.models)} models and the report are in {folder}"]
        head += [f"WARNING: {problem}" for problem in summary["bad_state"]]
        note = "before, after: mean |predicted / measured - 1| on whole shapes held out; before is the model that never saw this GPU"
        output.write_table(found, head=[*head, note, ""])
    if not calibration.models:
        raise NoAnswerError("no part of the fit was adopted: the reasons are above")


def _summary(
    spec: GpuSpec, rows: Sequence[Mapping[str, Any]], outcomes: Any, states: Sequence[Mapping[str, Any]], budget_s: float | None
) -> dict[str, Any]:
    from perfmodel.calibrate.report import summarise

    return summarise(spec, rows, outcomes, states=states, budget_s=budget_s)


def _transfer(from_gpu: str | None, to_gpu: str | None, json_: bool, csv_: bool) -> None:
    from perfmodel.calibrate.transfer_report import explain

    if not from_gpu or not to_gpu:
        raise InputError("--from-gpu and --to-gpu go together: which GPU was measured, and which is asked about?")
    source, target = find_gpu(from_gpu), find_gpu(to_gpu)
    rows = explain(source, target)
    if json_ or csv_:
        _print(rows, json_, csv_)
    else:
        output.write_table(rows, head=[f"what {source.name} says of {target.name}", ""])


def _print(rows: Sequence[Mapping[str, Any]], json_: bool, csv_: bool) -> None:
    if json_:
        output.write_json(rows)
    elif csv_:
        output.write_csv(rows)
    else:
        output.write_table(rows)
