"""The benchmarks measure what they say, and every subject still runs."""

import gc
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from benchmarks import measure, report
from benchmarks.measure import Case, Options, Timing, compare, per_second
from benchmarks.subjects import SUBJECTS


@pytest.fixture(autouse=True)
def uncollected(monkeypatch):
    """What a whole suite has made takes the garbage collector half a second, before every measurement."""
    monkeypatch.setattr(measure, "gc", SimpleNamespace(collect=lambda: None, disable=gc.disable, enable=gc.enable))


def test_variants_take_turns_in_alternating_order():
    calls = []
    found = compare({name: lambda name=name: calls.append(name) for name in "ab"}, repeats=4)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab" + "ba"
    assert [len(timing.values) for timing in found.values()] == [4, 4]


def test_times_and_rates_come_from_the_clock(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock) * 0.25)
    assert compare({"a": lambda: None}, 3, scale=1e3)["a"].values == [250.0] * 3
    assert per_second({"a": lambda: 50}, 3)["a"].values == [200.0] * 3


def test_a_ratio_says_how_many_times_better():
    slow, fast = Timing([10.0, 12.0, 11.0]), Timing([5.5])
    assert Case("time", "ms", {"first": slow, "second": fast}).ratio("second") == 2.0
    assert Case("rate", "1/s", {"first": slow, "second": fast}, more_is_better=True).ratio("second") == 0.5
    assert slow.median == 11.0 and slow.quartiles == (10.5, 11.5) and fast.quartiles == (5.5, 5.5)


def test_ratios_of_single_rounds_keep_the_rounds_together():
    first, second = Timing([10.0, 20.0, 30.0]), Timing([5.0, 8.0, 10.0])
    assert Case("time", "ms", {"first": first, "second": second}).ratios("second") == "2.00 .. 3.00"
    assert Case("rate", "1/s", {"first": first, "second": second}, more_is_better=True).ratios("second") == (
        "0.33 .. 0.50"
    )


def test_cpu_time_counts_children_that_have_ended():
    before = measure.cpu_seconds()
    work = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert measure.cpu_seconds() - before >= 0.2


def test_another_clock_measures():
    clock = itertools.count()
    assert compare({"a": lambda: None}, 2, 1.0, lambda: next(clock) * 3.0)["a"].values == [3.0, 3.0]


def test_repeats_follow_the_options():
    assert Options(quick=True, repeats=9).times(5) == 2
    assert Options(repeats=9).times(5) == 9 and Options().times(5) == 5


@pytest.mark.slow
def test_the_baseline_has_the_papers_size():
    from benchmarks.baseline import UNet

    with torch.device("meta"):
        net = UNet(2, 40, (256, 512, 1024))  # two observations of nine keypoints and the agent
    assert round(sum(parameter.numel() for parameter in net.parameters()) / 1e6, 1) == 65.8


@pytest.mark.slow
def test_both_sides_read_the_same_windows():
    from benchmarks.baseline import WindowDataset
    from benchmarks.setting import HORIZON, N_ACTION_STEPS, N_OBS_STEPS, arrays, trajectories

    theirs = WindowDataset(arrays(), HORIZON, N_OBS_STEPS, N_ACTION_STEPS)
    ours, statistics = trajectories().train, trajectories().statistics()
    assert len(theirs) == len(ours) == 25_650 - 206 * (HORIZON - N_OBS_STEPS - N_ACTION_STEPS + 1)
    ids = torch.arange(0, len(ours), 97)
    batch = ours.fetch(ids)
    for row, index in enumerate(ids.tolist()):
        for values, key, name in ((batch.x, "x", "action"), (batch.cond["state"], "state", "state")):
            low, high = (torch.from_numpy(bound).float() for bound in (statistics[key].min, statistics[key].max))
            normalised = 2 * (values[row] - low) / (high - low) - 1
            torch.testing.assert_close(theirs[index][name], normalised, rtol=0, atol=1e-5)


def test_the_page_in_the_repository_is_made_of_its_records():
    page = Path(__file__).parents[2] / report.PAGE
    records = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert page.read_text(encoding="utf-8") == report.markdown(records), "run: python -m benchmarks.report"


def test_a_section_is_replaced_and_the_others_stay(tmp_path):
    page, about = tmp_path / "page.md", {"date": "today", "processor": "one", "threads": 1, "torch": "2"}
    about |= {"fp32_gflops": 1, "bf16_gflops": 2, "copy_gb_per_s": 3.5, "heap_kept": True}
    page.with_suffix(".json").write_text("{}")
    for section, median in (("A", 1.0), ("B", 2.0), ("A", 3.0)):
        case = Case("a step", "ms", {"plain": Timing([4.0]), "ours": Timing([median])}, note="small")
        measured = report.document({"training_step": [case]}, about, f"--section {section}")
        report.keep(section, measured, page)
        assert measured["subjects"]["training_step"][0]["variants"]["ours"]["values"] == [median]
    text = page.read_text()
    assert text.count("## ") == 2 and "`python -m benchmarks --section B`" in text and "- a step: small" in text
    assert "|  | ours | 3 | 3 .. 3 | ms | 1.33 |" in text and "|  | ours | 2 | 2 .. 2 | ms | 2.00 |" in text
    assert "|  | ours | 1 |" not in text and "values" not in page.with_suffix(".json").read_text()


def test_what_an_interrupted_call_has_measured_is_shown_at_once_and_read_by_the_next(tmp_path, monkeypatch):
    from benchmarks.__main__ import main
    from benchmarks.subjects import limits

    measured, about = [], {"processor": "one", "threads": 1, "torch": "2", "fp32_gflops": 1, "bf16_gflops": 2}
    monkeypatch.setattr(report, "machine", lambda: about | {"copy_gb_per_s": 3.5, "heap_kept": True})

    def part(name, ms):
        def measure():
            measured.append(name)
            if measured == ["UNet", "DiT"]:
                raise KeyboardInterrupt
            return [Case(name, "ms", {"limit": Timing([1.0]), "dp_prior": Timing([ms])}, note="small")]

        return measure

    monkeypatch.setattr(limits, "parts", lambda options: {"UNet": part("UNet", 4.5), "DiT": part("DiT", 8.0)})
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    output = tmp_path / "new" / "results.json"
    first, second = (CliRunner().invoke(main, ["limits", "--output", str(output)]) for _ in range(2))
    assert first.exit_code and "4.5" in first.output and "UNet: small" in first.output
    assert second.exit_code == 0 and measured == ["UNet", "DiT", "DiT"]
    cases = json.loads(output.read_text())["subjects"]["limits"]
    medians = {case["name"]: case["variants"]["dp_prior"]["median"] for case in cases}
    assert medians == {"UNet": 4.5, "DiT": 8.0} and [*output.parent.iterdir()] == [output]
    assert CliRunner().invoke(main, ["limits", "--output", str(output)]).exit_code == 0
    assert measured[3:] == ["UNet", "DiT"]  # a finished call is no part of another one


def test_shares_of_work_are_those_of_its_operators(monkeypatch):
    from benchmarks import kinds_of_work

    x, norm, weight = torch.randn(64, 8, 64), torch.nn.GroupNorm(2, 8), torch.randn(64, 64, requires_grad=True)
    clock = itertools.count()
    monkeypatch.setattr(kinds_of_work.time, "perf_counter", lambda: float(next(clock)))
    divided = kinds_of_work.shares({"a": lambda: x.flatten(0, 1) @ weight.detach(), "averages": lambda: x.add(1)}, 3)
    assert divided.keys() == {"products", "traffic", "dispatch", "averages"} and sum(divided.values()) == 1
    work = {"network": lambda: norm((x @ weight).relu()).transpose(1, 2).contiguous().sum().backward()}
    kinds = kinds_of_work.shares(work, 1)
    assert kinds.keys() == {"products", "normalisation", "activation", "layout changes", "traffic", "dispatch"}
    assert not kinds_of_work.KIND_OF.keys() & {"add", "sum", "lerp_"}


def test_traffic_moves_as_many_bytes_as_asked(monkeypatch):
    from benchmarks.kinds_of_work import traffic

    added = []
    monkeypatch.setattr(torch.Tensor, "add_", lambda self, other: added.append(12 * len(self)))
    for n_bytes in (12, 12_000, 3 * 12 * 2**26):
        added.clear()
        traffic(n_bytes)()
        assert sum(added) == n_bytes


def test_every_subject_is_measured_once():
    files = (Path(__file__).parents[2] / "benchmarks" / "subjects").glob("[!_]*.py")
    assert sorted(SUBJECTS) == sorted(path.stem for path in files)


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_runs(subject, tmp_path):
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(output), subject]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cases = json.loads(output.read_text())["subjects"][subject]
    assert cases and all(math.isfinite(timing["median"]) for case in cases for timing in case["variants"].values())
    counts = {case["name"]: len(case["variants"]["dp_prior"]["values"]) for case in cases if "save" in case["name"]}
    assert counts == ({"the first save stops training for": 1} if subject == "saving" else {})
