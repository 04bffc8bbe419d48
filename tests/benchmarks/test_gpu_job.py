"""The GPU job goes on where a call of it has ended, and falls back to the demonstrations of this repository."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from click import ClickException
from click.testing import CliRunner
from torch.profiler import ProfilerActivity, profile

from benchmarks import bounded, gpu, steps
from benchmarks.results_file import ResultsFile
from benchmarks.steps import measure
from dp_prior import TrainConfig
from tests.messages import naming, told


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
    monkeypatch.setattr(gpu.bounded, "run", lambda *command, **how: done)
    gpu.check(job)
    summary = {"passed": passed, "summary": output or "No module named pytest", "failures": []}
    assert job.results["check"] == summary


def test_tests_that_hang_cost_their_bound_and_nothing_else(job, monkeypatch):
    lines = "[gw0] [ 5%] PASSED tests/test_gpu.py::a\n[gw1] [ 9%] FAILED tests/test_gpu.py::b[images]\n"

    def run(command, timeout_s, **how):
        assert timeout_s == gpu.CHECK_S
        raise subprocess.TimeoutExpired(command, timeout_s, lines, "")

    monkeypatch.setattr(gpu.bounded, "run", run)
    gpu.check(job)
    assert not job.results["check"]["passed"] and job.results["check"]["failures"] == ["tests/test_gpu.py::b[images]"]
    page = "\n".join(gpu.report(job))
    assert told(page, "FAILED", 200) and "  - tests/test_gpu.py::b[images]" in page


@pytest.mark.parametrize("is_recorded", [True, False])
def test_only_policies_of_the_same_data_stand_beside_the_published_one(tmp_path, is_recorded):
    job = gpu.Job(tmp_path, "cpu", tmp_path if is_recorded else None, False, 1000.0)
    job.results["test pusht_image_gpu"] = {"episodes": 500, "score": 0.9, "low": 0.8, "high": 1.0, "solved": 0.5}
    page = "\n".join(gpu.report(job))
    assert ("LeRobot's card" in page) == is_recorded and ("scripted" in page) != is_recorded


def test_code_of_a_compiler_that_was_killed_is_not_read_again(job, monkeypatch):
    """Torch fails each time on a library that is cut off."""
    library = job.out / "compiled" / "72" / "main.so"
    assert job.environment["TORCHINDUCTOR_CACHE_DIR"] == str(job.out / "compiled")

    def compile_half() -> None:
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(b"")

    def hangs(command, timeout_s, **how):
        compile_half()
        raise subprocess.TimeoutExpired(command, timeout_s, "", "")

    monkeypatch.setattr(bounded, "run", hangs)
    gpu.check(job)
    assert not library.exists()
    gpu.throughput(job, [("ours", "image", "fp32", "auto")])
    assert not library.exists() and "failed" in job.results["step image ours fp32 auto"]
    compile_half()
    gpu.Job(job.out, "cpu", None, True, 1000.0)  # after a call that was killed
    assert not library.exists()
    compile_half()
    job.end()
    gpu.Job(job.out, "cpu", None, True, 1000.0)
    assert library.exists()


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
    every = [*cases, *gpu.acting_cases(whole), *gpu.further_steps(whole)]
    assert len({*every}) == len(every) and {case[3] for case in gpu.first_steps(job)} == {"auto", "off"}
    assert not {case[3] for case in every[: -len(gpu.further_steps(whole))] if case[0] == "ours"} - {"auto", "off"}
    measured = []

    def measure(arguments, bound_s):
        measured.append(arguments)
        return {"ms": [2.0, 1.0, 3.0], "peak_mb": 5.0, "warm_up_s": 0.1, "kernels": 7, "choice": "off, no\ncompiler"}

    monkeypatch.setattr(gpu, "measure", measure)
    gpu.throughput(job, [("ours", "image", "fp32", "auto"), ("acting", "image b56", "fp32", "off")])
    assert measured[1][:7] == ["acting", "--kind", "image", "--widths", "16,32", "--batch-size", "56"]
    assert job.results["step image b56 acting fp32 off"]["windows_per_s"] == 28_000
    page = "\n".join(gpu.report(job))
    assert (
        "| image ours fp32 auto | 2.0 | 2000.0 | 7 | 5 |" in page and "- image ours fp32 auto: off, no compiler" in page
    )


def test_a_step_that_fails_or_hangs_leaves_the_time_to_the_next_one(job, monkeypatch):
    bounds = {}

    def measure(arguments, bound_s):
        mode = arguments[arguments.index("--compile") + 1]
        bounds[mode] = bound_s
        if mode == "auto":
            raise subprocess.TimeoutExpired("python", bound_s, "", "autotuning ...")
        if mode == "default":
            raise RuntimeError("LoweringException: no kernel")
        return {"ms": [1.0], "peak_mb": 5.0, "warm_up_s": 0.1, "kernels": None, "choice": ""}

    monkeypatch.setattr(gpu, "measure", measure)
    gpu.throughput(job, [("ours", "image", "fp32", mode) for mode in ("auto", "default", "off")])
    auto, default, off = (job.results[f"step image ours fp32 {mode}"] for mode in ("auto", "default", "off"))
    assert auto["failed"].startswith("not measured within 180 s: autotuning") and "no kernel" in default["failed"]
    assert off["ms"] == 1.0 and bounds["off"] == 90 and gpu.fastest_mode(job, "image") == "off"
    page = "\n".join(gpu.report(job))
    assert "| image ours fp32 off | 1.0 | 4000.0 | None | 5 |" in page and "fp32 default: LoweringException: no" in page


def test_kernels_are_counted_among_events_whose_device_is_equal_but_another_object():
    """As in profiles of torch, where each event makes its own value; ranges of the program are no kernels."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(3).add(1)
    types = torch.autograd.DeviceType
    operators = profiler.events()
    assert any(event.device_type is not types.CPU for event in operators)
    assert steps._asked_of(types.CPU, operators) >= 2

    class Event(SimpleNamespace):
        device_type = property(lambda self: types(types.CUDA.value))

    kernels = [Event(name="gemm"), Event(name="add", is_user_annotation=False)]
    assert steps._asked_of(types.CUDA, [*operators, *kernels, Event(name="step", is_user_annotation=True)]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("words", [("ours", "--compile", "off"), ("acting", "--kind", "state")])
def test_a_step_tells_its_kernels(words):
    arguments = [*words, "--widths", "16,32", "--batch-size", "4", "--steps", "2"]
    measurement = measure(arguments)
    assert len(measurement["ms"]) == 2 and measurement["kernels"] > 100 and measurement["peak_mb"] > 10


def test_training_that_ran_out_of_time_is_started_again(job, monkeypatch):
    codes, commands = [gpu.MORE, 0], []

    def run(command, timeout_s, log=None, **how):
        commands.append(command)
        return SimpleNamespace(returncode=codes.pop(0))

    monkeypatch.setattr(gpu.bounded, "run", run)
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


def test_a_training_whose_compiler_fails_goes_on_without_it(job, monkeypatch):
    modes, codes = [], [64, 0]
    job.results |= {"step fast ours bf16 auto": {"ms": 1.0}, "step fast ours bf16 off": {"ms": 3.0}}

    def run(command, timeout_s, log=None, **how):
        modes.append(next(word for word in command if word.startswith("train.compile=")))
        log.write("no Triton\n")
        log.flush()
        return SimpleNamespace(returncode=codes.pop(0))

    monkeypatch.setattr(gpu.bounded, "run", run)
    gpu.train(job, "pusht_image_gpu")
    assert modes == ["train.compile=auto", "train.compile=off"] and job.results["train pusht_image_gpu"]["starts"] == 2
    assert "- train pusht_image_gpu, compiled: failed, code 64; the log ends: no Triton" in "\n".join(gpu.report(job))


def test_a_training_that_fails_or_hangs_leaves_the_time_to_what_follows(job, monkeypatch):
    def hangs(command, timeout_s, **how):
        raise subprocess.TimeoutExpired(command, timeout_s)

    monkeypatch.setattr(gpu.bounded, "run", hangs)
    gpu.train(job, "pusht_image_gpu")
    gpu.test(job, "pusht_image_gpu")  # of nothing
    assert "did not stop within 30 s" in job.results["train pusht_image_gpu"]["failed"]
    assert "test pusht_image_gpu" not in job.results
    job.note("train pusht_image_paper", {"seconds": 1, "starts": 1})
    gpu.test(job, "pusht_image_paper")  # there is no checkpoint
    assert "failed" in job.results["test pusht_image_paper"]
    page = "\n".join(gpu.report(job))
    assert "test pusht_image_paper: failed" in page and "train pusht_image_gpu: failed" in page


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
    monkeypatch.setattr(gpu.signal, "signal", lambda *arguments: None)
    first, second = (CliRunner().invoke(gpu.main, arguments) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (gpu.MORE, 0), second.output
    assert "| image ours bf16 off | failed |" in (tmp_path / "report.md").read_text()


def test_without_a_gpu_nothing_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(gpu.main, ["--out", str(tmp_path)])
    assert result.exit_code == 1 and told(result.output, torch.__version__, "no GPU", "--device cpu --small")
    assert not list(tmp_path.iterdir())


def test_a_late_command_ends_with_all_that_it_started(tmp_path, monkeypatch):
    """A child that holds the output open, too, which `subprocess.run` would wait for."""
    monkeypatch.setattr(bounded, "GRACE_S", 0.2)
    marker = tmp_path / "child"
    child = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}])\nprint('begun')\n"
    ends = {
        "hangs": "sys.stdout.flush(); time.sleep(600)",
        "ends": "while not __import__('os').path.exists(sys.argv[1]): time.sleep(0.05)",
    }
    with pytest.raises(subprocess.TimeoutExpired) as late:
        bounded.run([sys.executable, "-c", program + ends["hangs"]], 2.0)
    assert late.value.output == "begun\n" and _has_ended(int(marker.read_text()))
    marker.unlink()
    done = bounded.run([sys.executable, "-c", program + ends["ends"], str(marker)], 60.0)
    assert (done.returncode, done.stdout) == (0, "begun\n") and _has_ended(int(marker.read_text()))


def _has_ended(pid: int) -> bool:
    """Whether a process ends within seconds; a dead one may wait for its parent to notice."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False
