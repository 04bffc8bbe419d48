"""The GPU job goes on where a call of it has ended, and falls back to the demonstrations of this repository."""

import json
from types import SimpleNamespace

import pytest
from click import ClickException
from click.testing import CliRunner

from benchmarks import gpu
from benchmarks.results_file import ResultsFile
from benchmarks.steps import measure
from dp_prior import TrainConfig
from tests.messages import naming


@pytest.fixture
def job(tmp_path):
    return gpu.Job(tmp_path / "out", "cpu", tmp_path / "no_such_data", True, 1000.0)


def test_results_are_read_again_by_the_next_call(job):
    job.note("a", {"ms": 1.5})
    job.note("a", {"ms": 2.5})
    again = gpu.Job(job.out, "cpu", None, True, 1000.0)
    assert again.results == {"a": {"ms": 2.5}}


def test_results_of_other_options_are_not_mixed_and_a_cut_line_is_measured_again(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    ResultsFile(path, episodes=50).note("a", 1)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"name": "b", "res')
    ResultsFile(path, episodes=50).note("b", 2)
    assert ResultsFile(path, episodes=50).results == {"a": 1, "b": 2} and path.read_bytes().startswith(whole)
    with pytest.raises(ClickException, match=naming("{'episodes': 50}", "{'episodes': 100}")):
        ResultsFile(path, episodes=100)


@pytest.mark.parametrize(
    ("code", "output", "passed"),
    [(0, "2 passed, 1 skipped", True), (0, "3 skipped", False), (1, "1 failed, 2 passed", False), (1, "", False)],
)
def test_a_check_that_was_skipped_has_not_passed(job, monkeypatch, code, output, passed):
    done = SimpleNamespace(returncode=code, stdout=output, stderr="No module named pytest\n")
    monkeypatch.setattr(gpu.subprocess, "run", lambda *command, **how: done)
    gpu.check(job)
    summary = {"passed": passed, "summary": output or "No module named pytest"}
    assert job.results["check"] == summary


@pytest.mark.parametrize("is_recorded", [True, False])
def test_only_policies_of_the_same_data_stand_beside_the_published_one(tmp_path, is_recorded):
    job = gpu.Job(tmp_path, "cpu", tmp_path if is_recorded else None, False, 1000.0)
    job.results["test pusht_image_gpu"] = {"episodes": 500, "score": 0.9, "low": 0.8, "high": 1.0, "solved": 0.5}
    page = "\n".join(gpu.report(job))
    assert ("LeRobot's card" in page) == is_recorded and ("scripted" in page) != is_recorded


def test_nothing_begins_that_would_not_end_in_time(tmp_path):
    job = gpu.Job(tmp_path, "cpu", None, True, 60.0)
    job.needs(30)
    with pytest.raises(gpu.OutOfTimeError):
        job.needs(90)


def test_compiling_must_gain_five_percent(job):
    assert gpu.fastest_mode(job, "fast") == "off"
    for mode, ms in (("off", 10.0), ("default", 9.6), ("reduce-overhead", None)):
        job.results[f"step fast ours bf16 {mode}"] = {"failed": "no Triton"} if ms is None else {"ms": ms}
    assert gpu.fastest_mode(job, "fast") == "off"
    job.results["step fast ours bf16 default"] = {"ms": 9.0}
    assert gpu.fastest_mode(job, "fast") == "default"


def test_the_default_and_eager_come_first_and_a_rehearsal_has_both(job, tmp_path, monkeypatch):
    whole = gpu.Job(tmp_path / "whole", "cuda", tmp_path, False, 1000.0)
    monkeypatch.setattr(gpu.peers, "missing", lambda *names: None)
    cases = gpu.first_steps(whole)
    assert cases[:2] == [("ours", "image", "fp32", "auto"), ("ours", "image", "fp32", "off")]
    assert {("lerobot", "image", "fp32", "default"), ("stanford", "image", "fp32", "off")} <= {*cases}
    assert len({*cases}) == len(cases) and {case[3] for case in gpu.first_steps(job)} == {"auto", "off"}
    measured = []

    def measure(arguments, left_s):
        measured.append(arguments)
        return {"ms": [2.0, 1.0, 3.0], "peak_mb": 5.0, "warm_up_s": 0.1, "kernels": 7}

    monkeypatch.setattr(gpu, "measure", measure)
    gpu.throughput(job, [("ours", "image", "fp32", "auto"), ("acting", "image b56", "fp32", "off")])
    assert measured[1][:7] == ["acting", "--kind", "image", "--widths", "16,32", "--batch-size", "56"]
    assert job.results["step image b56 acting fp32 off"]["windows_per_s"] == 28_000
    assert "| image ours fp32 auto | 2.0 | 2000.0 | 7 | 5 |" in "\n".join(gpu.report(job))


@pytest.mark.slow
@pytest.mark.parametrize("words", [("ours", "--compile", "off"), ("acting", "--kind", "state")])
def test_a_step_tells_its_kernels(words):
    arguments = [*words, "--widths", "16,32", "--batch-size", "4", "--steps", "2"]
    measurement = measure(arguments)
    assert len(measurement["ms"]) == 2 and measurement["kernels"] > 100 and measurement["peak_mb"] > 10


def test_training_that_ran_out_of_time_is_started_again(job, monkeypatch):
    codes, commands = [gpu.MORE, 0], []

    def run(command, **how):
        commands.append(command)
        return SimpleNamespace(returncode=codes.pop(0))

    monkeypatch.setattr(gpu.subprocess, "run", run)
    with pytest.raises(gpu.OutOfTimeError):
        gpu.train(job, "pusht_image_gpu")
    gpu.train(job, "pusht_image_gpu")
    gpu.train(job, "pusht_image_gpu")  # it is done
    assert len(commands) == 2 and job.results["train pusht_image_gpu"]["starts"] == 2
    settings = dict(part.split("=", 1) for part in commands[0][5::2])
    assert 900 < float(settings["train.max_runtime"]) < 1000
    scripted = job.out / "first_episodes.npz"  # of a small job
    assert json.loads(settings["data.episodes"]) == {"type": "npz", "path": str(scripted)} and scripted.is_file()
    given = [f"{path}={value}" for path, value in settings.items()]
    recipe = TrainConfig.from_json_path(gpu.ROOT / "configs/policy/pusht_image_gpu.json", given)
    assert recipe.data.images["camera"].render.type == "pusht" and recipe.data.frame_cache == job.out / "frames"


def test_recorded_demonstrations_are_taken_where_they_are(tmp_path):
    job = gpu.Job(tmp_path / "out", "cuda", tmp_path, False, 1000.0)
    settings = gpu.run_settings(job, "pusht_image_gpu")
    assert settings["data.episodes.path"] == str(tmp_path) and "data.episodes" not in settings
    assert not set(settings) & set(gpu.TINY)


def test_a_call_ends_with_75_while_something_is_left_and_with_0_after_that(tmp_path, monkeypatch):
    left = [True, False]

    def check(job):
        if left.pop(0):
            raise gpu.OutOfTimeError

    monkeypatch.setattr(gpu, "check", check)
    failed = {"failed": "no compiler"}
    monkeypatch.setattr(gpu, "throughput", lambda job, cases: job.note("step image ours bf16 off", failed))
    for name in ("train", "test"):
        monkeypatch.setattr(gpu, name, lambda job, recipe: None)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("DP_PRIOR_TEST_DEVICE", "cpu")
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--small"]
    first, second = (CliRunner().invoke(gpu.main, arguments) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (gpu.MORE, 0), second.output
    assert "| image ours bf16 off | failed |" in (tmp_path / "report.md").read_text()
