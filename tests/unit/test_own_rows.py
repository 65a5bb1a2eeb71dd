"""A user's own rows: of the right GPU, possible, and better than what is shipped before they replace it; listing and removing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.calibrate import keep
from perfmodel.calibrate.accept import rows_of_gpu
from perfmodel.calibrate.table import check_table
from perfmodel.cli.main import run
from perfmodel.errors import InputError, InputWarning
from perfmodel.hw import gpu
from perfmodel.learn import scope
from perfmodel.learn.calibration import KEPT_KEY, Calibration
from perfmodel.learn.model import FittedModel, shipped_model
from perfmodel.learn.operators import predict_columns
from perfmodel.learn.plausible import check_repeats, rank_correlation, usable
from perfmodel.learn.stored import find, remove, stored
from perfmodel.ops import OperatorTable

LAW = np.log(np.geomspace(1e-6, 1e-3, 20))  # 20 rows from 1 us to 1 ms


def judge(measured: Any, law: Any = LAW, fast: Any = None) -> np.ndarray:
    return usable("gemm", range(len(law)), np.asarray(measured), law, law, fast)


def refused(ask: Callable[[], object], *words: str) -> None:
    with pytest.raises(InputError) as caught:
        ask()
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text and len(text) <= 200, text


def said(ask: Callable[[], Any], *words: str) -> Any:
    with pytest.warns(InputWarning) as caught:
        found = ask()
    text = str(caught[0].message)
    assert len(caught) == 1 and all(word in text for word in words) and "\n" not in text and len(text) <= 200, text
    return found


def test_a_good_table_is_taken_whole_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judge(LAW + 0.3).all()


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (LAW - np.log(1e3), ("0.001 times what the model says", "look like milliseconds")),
        (LAW + np.log(1e3), ("look like nanoseconds",)),
        (LAW - np.log(1e6), ("look like seconds",)),
        (LAW + np.log(40.0), ("another unit, or another GPU",)),
        (np.full(20, np.log(5e-6)), ("20 of 20 rows have the latency 5 us", "1 to 1e+03 us", "not measured?")),
        (LAW[::-1], ("unrelated (rank correlation -1.00, expected 0.3 or more)", "shuffled")),
        (np.where(np.arange(20) < 9, LAW, LAW - 700.0), ("another unit",)),
    ],
)
def test_a_table_that_is_wrong_as_a_whole(measured: np.ndarray, words: tuple[str, ...]) -> None:
    refused(lambda: judge(measured), *words)


def test_single_rows_in_another_unit_are_left_out_by_number() -> None:
    measured = LAW.copy()
    measured[[3, 7]] -= np.log(1e3)
    good = said(lambda: judge(measured), "left out rows 3, 7", "0.001 times", "perhaps milliseconds")
    assert np.flatnonzero(~good).tolist() == [3, 7]
    measured = LAW.copy()
    measured[11] = np.log(1e-306)  # 1e-300 us
    assert np.flatnonzero(~said(lambda: judge(measured), "left out row 11")).tolist() == [11]


def test_rows_that_beat_the_card_are_left_out_by_number() -> None:
    fast = np.arange(20) < 7
    good = said(lambda: judge(LAW, fast=fast), "left out rows 0, 1, 2, 3, 4 (7 such rows)", "faster than the card's peaks")
    assert (good == ~fast).all()
    refused(lambda: judge(LAW, fast=np.arange(20) < 12), "(12 such rows)", "beat the card's peaks", "wrong GPU")


def test_rank_correlation_by_hand() -> None:
    """1 - 6 sum(d^2) / (n (n^2 - 1)): d = 0, 1, 1, 0 of four."""
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([10.0, 30, 20, 40])) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert rank_correlation(np.ones(4), np.arange(4.0)) == 0.0


def test_repeats_far_from_their_median() -> None:
    key = np.repeat(np.arange(10.0), 3)[:, None]
    latency = np.tile([1.0, 1.1, 5.0], 10)
    said(lambda: check_repeats("gemm", range(30), key, np.log(latency)), "rows 2, 5, 8, 11, 14 (10 such rows)", "the median is taken")
    pairs = np.repeat(np.arange(10.0), 2)[:, None]
    refused(lambda: check_repeats("gemm", range(20), pairs, np.log(np.tile([1.0, 5.0], 10))), "(20 such rows)", "is a column missing")
    frame = pd.DataFrame({"m": [64, 64, 64], "n": 64, "k": 64, "latency_us": [2.0, 3.0, 9.0]})
    with pytest.warns(InputWarning, match="row 2 repeat"):
        assert check_table("gemm", frame)["latency_us"].tolist() == [3.0]


def rows(names: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"gpu": names, "m": range(len(names))})


def test_the_gpu_column_names_the_gpu_that_is_asked_about() -> None:
    h200 = gpu("h200_sxm")
    assert len(rows_of_gpu("gemm", h200, rows(["NVIDIA H200", "h200_sxm", "H200"]))) == 3
    assert len(rows_of_gpu("gemm", h200, rows(["H200"]).drop(columns="gpu"))) == 1
    refused(lambda: rows_of_gpu("gemm", h200, rows(["l40s", "L40S"])), "the gemm table is of l40s", "the question is about h200_sxm")
    mixed = rows(["H200", "l40s", "H200", "a card of mine", None])
    refused(
        lambda: rows_of_gpu("gemm", h200, mixed), "rows 1, 3, 4 are of l40s, a card of mine, no GPU, not of h200_sxm", "--skip-other-gpus"
    )
    assert rows_of_gpu("gemm", h200, mixed, skip_others=True).index.tolist() == [0, 2]
    refused(lambda: rows_of_gpu("gemm", h200, rows(["l40s"]), skip_others=True), "the gemm table is of l40s")


def table(factor: float, count: int, noise: float = 0.0) -> pd.DataFrame:
    """Rows as the shipped calibration of the H200 says them, times a factor that falls with k, and noise."""
    rng = np.random.default_rng(5)
    sizes = pd.DataFrame(2 ** rng.integers(6, 13, size=(400, 3)), columns=["m", "n", "k"]).drop_duplicates().head(count)
    frame = sizes.assign(stack="torch", dtype="bf16").reset_index(drop=True)
    truth = pm.predict_table("gemm", frame, "h200_sxm")["latency_us"]
    return frame.assign(latency_us=factor * truth * np.exp(noise * rng.standard_normal(len(frame))))


def test_rows_that_teach_nothing_leave_the_shipped_calibration_as_it_is() -> None:
    own = pm.calibrate_table("h200_sxm", {"gemm": table(1.0, 24, 0.05)})
    entry = own.kept["gemm"]
    assert entry["model"] == "shipped" and entry["rows"] == 24 and "shipped calibration" in entry["reason"]
    assert 0.0 < entry["today_error"] < 0.08 and own.own().models == {}
    ask = table(1.0, 100).assign(stack=lambda t: np.where(t.index % 2, "torch", "vllm"))
    pd.testing.assert_frame_equal(pm.predict_table("gemm", ask, "h200_sxm", calibration=own), pm.predict_table("gemm", ask, "h200_sxm"))


def test_rows_of_one_stack_correct_that_stack_alone() -> None:
    own = pm.calibrate_table("h200_sxm", {"gemm": table(1.3, 24)})
    entry = own.kept["gemm"]
    assert entry["model"] == "corrected" and entry["today_error"] == pytest.approx(0.3 / 1.3) and entry["corrected_error"] < 0.05
    ask = table(1.3, 100).iloc[24:].reset_index(drop=True)
    shipped, now = (pm.predict_table("gemm", ask, "h200_sxm", calibration=c) for c in ("auto", own))
    assert np.abs(now["latency_us"] / ask["latency_us"] - 1).mean() < 0.5 * np.abs(shipped["latency_us"] / ask["latency_us"] - 1).mean()
    for other in ({"stack": "vllm"}, {"dtype": "fp16"}, {"stack": "sglang"}):
        before, after = (pm.predict_table("gemm", ask.assign(**other), "h200_sxm", calibration=c) for c in ("auto", own))
        pd.testing.assert_frame_equal(before, after)
    mixed = ask.assign(stack=np.where(ask.index % 2, "torch", "vllm"))
    whole = pm.predict_table("gemm", mixed, "h200_sxm", calibration=own)
    one = pm.predict(pm.Gemm(*mixed.loc[3, ["m", "n", "k"]].astype(int)), "h200_sxm", stack="torch", calibration=own)
    assert one.latency_us == pytest.approx(whole.loc[3, "latency_us"], rel=1e-6) and one.low_us == pytest.approx(
        whole.loc[3, "low_us"], rel=1e-6
    )


def answer(model: FittedModel, columns: dict[str, np.ndarray]) -> Any:
    return predict_columns(gpu("h100_sxm"), "gemm", OperatorTable("gemm", columns), model)


def test_an_interval_in_scope_is_no_wider_than_the_shipped_one_and_part_narrower() -> None:
    shipped = shipped_model("h100_sxm", "gemm")
    assert shipped is not None
    columns = {name: np.full(4, v) for name, v in {"m": 512.0, "n": 4096.0, "k": 4096.0, "batch": 1.0, "dtype": 0.0, "kernel": 0.0}.items()}
    columns["stack"] = np.array([1.0, 2.0, 1.0, 3.0])
    before = answer(shipped, columns)
    width = np.log(before.high_us / before.latency_us)
    for own, narrowing, expected in ((9.0, 1.0, 1.0), (0.5, 1.0, 0.5), (0.5, 0.25, 0.875)):
        facts = {**shipped.card, "half_widths": {group: [own * w for w in ws] for group, ws in shipped.card["half_widths"].items()}}
        holds = scope.Scope(((1, 0, 0),), ((1, 0, 0),), narrowing)
        model = FittedModel(
            "mine", "calibrated", shipped.constants, shipped.interval, shipped.residual, shipped.envelope, {**facts, **holds.card()}
        )
        found = answer(model, columns)
        assert np.log(found.high_us / found.latency_us) == pytest.approx(width * np.where(columns["stack"] == 1, expected, 1.0), rel=1e-9)
        assert found.latency_us == pytest.approx(before.latency_us, rel=1e-9)


def test_a_pair_without_a_stack_stands_for_every_stack() -> None:
    columns = {"stack": np.array([0.0, 1.0, 4.0]), "dtype": np.array([0.0, 0.0, 1.0])}
    assert scope.inside(((0, 0, 0),), columns).tolist() == [True, True, False]
    assert scope.inside(((4, 1, 1),), columns).tolist() == [False, False, True]
    assert scope.pairs_of(columns) == ((0, 0, 0), (1, 0, 0), (4, 1, 1))


def now(error: list[float]) -> keep.Today:
    return keep.Today(FittedModel("m", "calibrated", {}, (-0.1, 0.1)), "shipped", np.array(error), 0.8)


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ([0.10] * 8, [0.05] * 8, "corrected"),
        ([0.10] * 8, [0.099] * 8, "shipped"),  # 1 % of itself: less than 2
        ([0.05] * 8, [0.10] * 8, "shipped"),
        ([0.40] + [0.05] * 7, [0.05] + [0.06] * 7, "shipped"),  # better on average, by one shape
    ],
)
def test_the_better_on_held_out_shapes_is_kept(before: list[float], after: list[float], kept: str) -> None:
    found = keep.verdict("gemm", np.arange(8), now(before), np.arange(8), np.array(after))
    assert found.kept == kept and len(found.reason) < 200
    assert found.today == pytest.approx(np.mean(before)) and found.corrected == pytest.approx(np.mean(after))


def test_a_table_of_few_shapes_cannot_be_judged() -> None:
    found = keep.too_few("gemm", np.zeros(20, dtype=np.int64), now([0.1] * 20))
    assert found.kept == "shipped" and found.corrected is None and "rows of 1 shapes cannot be judged" in found.reason


@pytest.fixture
def mine(_own_folders: Path) -> Path:
    """One's own calibration of two parts of the H100, and one of a GPU that is not shipped."""
    folder = _own_folders / "calibration"
    model = FittedModel(
        "h100_sxm:gemm:mine", "calibrated", {}, (-0.1, 0.1), card={"rows": 40, "shapes": 12, "held_out_error": {"corrected": 0.04}}
    )
    Calibration("h100_sxm", {"gemm": model, "memory": model}).save(folder / "h100_sxm")
    Calibration("l20", {"gemm": model}).save(folder / "l20")
    (folder / "l20" / "report.md").write_text("x")
    return folder


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["calibrate", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_list_and_show(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "list", "--json")
    found = {(row["gpu"], row["part"], row["whose"]): row for row in json.loads(out)}
    assert code == 0 and len(found) == len(stored())
    own = found["h100_sxm", "gemm", "own"]
    assert (own["rows"], own["shapes"], own["error"], own["answers"], own["path"]) == (40, 12, 0.04, True, str(mine / "h100_sxm" / "gemm"))
    assert own["made"].count("-") == 2 and found["h100_sxm", "gemm", "shipped"]["made"] == ""
    assert found["h100_sxm", "gemm", "shipped"]["answers"] is False and found["h100_sxm", "moe", "shipped"]["answers"] is True
    assert {row["gpu"] for row in json.loads(command(capsys, "list", "--own", "--json")[1])} == {"h100_sxm", "l20"}
    assert all(row["gpu"] == "h100_sxm" for row in json.loads(command(capsys, "list", "--gpu", "H100", "--json")[1]))
    assert "held_out_error.corrected" in command(capsys, "show", "L20/gemm")[1]
    assert json.loads(command(capsys, "show", "l20", "--json")[1])[0]["card"]["rows"] == 40
    (mine / "l20" / "gemm" / "card.json").write_text("{")
    assert next(one for one in stored() if one.gpu == "l20").tier == "unreadable"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("remove", "h100_sxm/moe"), "h100_sxm/moe is shipped with perfmodel: only your own can be removed"),
        (("remove", "a100"), "a100_sxm4_80gb is shipped with perfmodel"),
        (("remove", "h100_sxm/gem"), "did you mean gemm"),
        (("show", "h100sx"), "did you mean h100_sxm"),
        (("show", "l4"), "nothing is stored for l4"),
    ],
)
def test_names_that_are_not_there(mine: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    code, out, err = command(capsys, *arguments)
    assert code == 2 and out == "" and words in err and err.count("\n") == 1
    assert len(find("l20")) == 1


def test_remove_deletes_ones_own_and_says_what(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "remove", "H100/gemm", "--json")
    assert code == 0 and json.loads(out) == [{"removed": str(mine / "h100_sxm" / "gemm" / "card.json")}]
    assert not (mine / "h100_sxm" / "gemm").exists() and (mine / "h100_sxm" / "memory" / "card.json").is_file()
    assert pm.predict(pm.Gemm(64, 64, 64), "h100_sxm").model_id == getattr(shipped_model("h100_sxm", "gemm"), "model_id", "")
    assert len(remove("l20")) == 2 and not (mine / "l20").exists()


def test_what_was_kept_from_the_shipped_is_not_stored_again() -> None:
    kept, own = (FittedModel(n, "calibrated", {}, (-0.1, 0.1), card={KEPT_KEY: {"model": n}}) for n in ("shipped", "corrected"))
    both = Calibration("l20", {"gemm": kept, "moe": own, "memory": FittedModel("plain", "calibrated", {}, (-0.1, 0.1))})
    assert set(both.own().models) == {"moe", "memory"} and set(both.kept) == {"gemm", "moe"}


@pytest.mark.parametrize(("after", "kept"), [(0.05, "corrected"), (0.099, "shipped"), (0.2, "shipped")])
def test_a_whole_law_is_kept_by_its_errors(after: float, kept: str) -> None:
    shipped = FittedModel("shipped", "calibrated", {}, (-0.1, 0.1))
    facts = {"rows": 24, "sizes": 6, "held_out_error": {"mean": after}, "prior_error": 0.1}
    fitted = FittedModel("fit", "calibrated", {}, (-0.1, 0.1), card=facts)
    found = keep.better_whole("collective", fitted, shipped, shipped)
    assert found.card[KEPT_KEY]["model"] == kept and found.model_id == ("fit" if kept == "corrected" else "shipped")
    assert keep.better_whole("collective", fitted, None, None) is fitted


def test_rows_of_a_run_of_another_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_rows = [{"what": "gemm", "status": "ok", "gpu_name": name, "latency_us": 5.0} for name in ("NVIDIA H200", "NVIDIA L40S")]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in run_rows))
    code, _, err = command(capsys, "--from", str(path), "--gpu", "h200")
    assert code == 2 and "1 rows of the run (1 ...) are of NVIDIA L40S, not of h200_sxm" in err and err.count("\n") == 1


def test_the_command_line_names_rows_and_what_was_kept(tmp_path: Path, _own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = table(1.0, 24, 0.05).assign(gpu="NVIDIA H200")
    frame.loc[3, "latency_us"] /= 1000.0
    frame.to_csv(tmp_path / "rows.csv", index=False)
    code, out, err = command(capsys, "table", str(tmp_path / "rows.csv"), "--kind", "gemm", "--gpu", "H200", "--json")
    assert code == 0 and "the gemm table: left out row 3: 0.00" in err and "perhaps milliseconds" in err and err.count("\n") == 1
    (row,) = json.loads(out)
    assert (row["kept"], row["rows"], row["folder"]) == ("shipped", 23, None) and row["today_error"] < 0.08
    assert not list((_own_folders / "calibration").glob("**/card.json"))
    code, _, err = command(capsys, "table", str(tmp_path / "rows.csv"), "--kind", "gemm", "--gpu", "l40s")
    assert code == 2 and "the gemm table is of NVIDIA H200, the question is about l40s" in err and err.count("\n") == 1
