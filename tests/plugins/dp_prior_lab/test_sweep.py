"""A sweep runs the grid, finds its runs again, and its page folds seeds."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.run.config import TrainConfig
from dp_prior.run.exit_file import BAD_DATA, STOPPED
from dp_prior.training.guard import NotFiniteError
from dp_prior_lab import sweep as sweeping
from dp_prior_lab.sweep import run_trials, trials
from tests.messages import naming, told
from tests.plugins.dp_prior_studio.pages.test_report import Outline
from tests.tiny import rows, write


def settings(found):
    return [(trial.config.train.lr.peak, trial.config.train.steps, trial.config.seed) for trial in found]


def test_the_grid_is_every_value_with_every_seed(tmp_path):
    found = trials(write(tmp_path, seed=5), ["train.lr.peak=1e-4,1e-3", "train.steps=2,3"], 2, ["data.batch_size=4"])
    assert settings(found) == [(peak, steps, seed) for peak in (1e-4, 1e-3) for steps in (2, 3) for seed in (5, 6)]
    assert all(trial.config.data.batch_size == 4 for trial in found)
    assert found[0].config.tracker.data_path == f"{tmp_path}/run_peak=1e-4_steps=2_seed=5"
    assert len({trial.config.tracker.data_path for trial in found}) == 8
    assert settings(trials(write(tmp_path), [], 1)) == [(1e-3, 24, 0)]


def test_values_may_be_lists_and_records(tmp_path):
    text = 'train.lr={"type": "constant", "peak": 0.1},{"type": "cosine", "peak": 0.2}'
    found = trials(write(tmp_path), [text, "data.split.seed=1,2"], 1)
    assert [trial.config.train.lr.type for trial in found] == ["constant", "constant", "cosine", "cosine"]


def test_texts_may_hold_commas_brackets_and_quotes(tmp_path):
    texts = ["a, b", 'say "c, d", or {', "x]", "", "back\\", 'f"g']
    found = trials(write(tmp_path), [f"description={','.join(map(json.dumps, texts))}"], 1)
    assert [trial.config.description for trial in found] == texts


def test_directories_of_long_values_can_be_made_and_differ_by_what_is_cut(tmp_path, monkeypatch):
    values = {
        "task.backbone": {"type": "mlp", "hidden_dim": 8, "n_blocks": 1},
        "train.ema": {"ema": {"type": "power", "max_decay": 0.9, "power": 0.5}},
        "train.lr": {"type": "cosine", "peak": 0.001, "warmup_steps": 200},
        "train.monitor": {"metric": "validation/ema/loss", "mode": "min"},
    }
    varied = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    found, again = (trials(write(tmp_path), varied, 2) for _ in range(2))
    first, second = (Path(trial.config.tracker.data_path) for trial in found)
    assert found == again and first != second
    assert len(first.name) == len(second.name) == len("run_") + 67 + len("_") + 12
    first.mkdir()
    assert trials(write(tmp_path), varied, 2) == found
    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "LONGEST_PLACE", sweeping.LONGEST_BEFORE)
        longer = Path(trials(write(tmp_path), varied, 1)[0].config.tracker.data_path)
    assert len(longer.name) == len("run_") + 150 + len("_") + 12
    longer.mkdir()  # as an earlier version named it
    again = trials(write(tmp_path), varied, 2)
    assert [Path(trial.config.tracker.data_path) for trial in again] == [longer, second]


def test_trials_whose_folders_are_one_where_case_is_ignored_are_refused_unless_both_were_made(tmp_path):
    varied = ["description=Red,red,blue"]
    with pytest.raises(ConfigError, match=naming("--vary", "a/b", "a_b")):
        trials(write(tmp_path), varied, 2)
    folders = [tmp_path / f"run_description={name}_seed=0" for name in ("Red", "red")]
    folders[0].mkdir()
    with pytest.raises(ConfigError, match=naming("--vary", "a/b", "a_b")):
        trials(write(tmp_path), varied, 1)
    folders[1].mkdir()
    assert len(trials(write(tmp_path), varied, 1)) == 3
    with pytest.raises(ConfigError, match=naming("--vary", "a/b", "a_b")):
        trials(write(tmp_path), ["description=a/b,a_b"], 1)


def test_printed_commands_are_those_runs(tmp_path):
    config = write(tmp_path)
    arguments = [
        "sweep",
        str(config),
        "--vary",
        'train.lr={"type": "constant", "peak": 0.1}',
        "--seeds",
        "2",
        "--print",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0 and not list(tmp_path.glob("run*"))
    found = trials(config, ['train.lr={"type": "constant", "peak": 0.1}'], 2)
    lines = [shlex.split(line) for line in result.output.splitlines()]
    assert len(lines) == 2 and all(line[:2] == ["dp-prior", "train"] for line in lines)
    _, train, *options = lines[1]
    assert CliRunner().invoke(main, [train, *options, "--set=train.steps=2"]).exit_code == 0
    assert rows(tmp_path / found[1].config.tracker.data_path.rpartition("/")[2])


def submitted(script: Path, task: int | str, folder: Path) -> subprocess.CompletedProcess:
    """Run the script as SLURM runs a task of it, elsewhere, with an `srun` that prints its arguments a line each."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/srun").write_text("#!/bin/sh\npwd\nprintf '%s\\n' \"$@\"\n")
    (folder / "bin/srun").chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(task)}
    environment |= {"SLURM_CPUS_PER_TASK": "8"}
    return subprocess.run(["bash", script], env=environment, cwd="/", capture_output=True, text=True)


def test_a_slurm_array_has_a_task_for_each_trial(tmp_path, monkeypatch):
    (place := tmp_path / "it's here").mkdir()
    monkeypatch.chdir(place)
    config, script = write(place), tmp_path / "array.sbatch"
    varied = 'train.lr={"type": "constant", "peak": 0.1},{"type": "constant", "peak": 0.2}'
    arguments = ["sweep", str(config), "--vary", varied, "--seeds", "2", "--slurm-array", str(script)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0 and told(done.output, f"sbatch {script}") and not list(place.glob("run*"))
    planned = trials(config, [varied], 2)
    text = script.read_text()
    assert "#SBATCH --array=1-4\n" in text and "#SBATCH --requeue" in text
    assert sum("dp-prior train " in line for line in text.splitlines()) == len(planned) == 4
    for number, trial in enumerate(planned, 1):
        folder, processors, *words = submitted(script, number, tmp_path).stdout.splitlines()
        assert folder == str(place) and processors == "--cpus-per-task=8" and words[:2] == ["dp-prior", "train"]
        overrides = [word.removeprefix("--set=") for word in words[3:]]
        changed = TrainConfig.from_json_path(words[2], overrides)
        assert changed.train.requeue and not trial.config.train.requeue
        assert changed.tracker.directory == trial.config.tracker.directory
        assert (changed.train.lr, changed.seed) == (trial.config.train.lr, trial.config.seed)
    unknown = submitted(script, 5, tmp_path)
    assert unknown.returncode == 64 and told(unknown.stderr, "'5'", "1 to 4")


def test_a_slurm_array_keeps_what_the_user_sets_and_replaces_no_file(tmp_path):
    config, script = write(tmp_path), tmp_path / "array.sbatch"
    arguments = ["sweep", str(config), "--set", "train.requeue=false", "--slurm-array", str(script)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    words = submitted(script, 1, tmp_path).stdout.splitlines()[2:]
    assert not TrainConfig.from_json_path(config, [word.removeprefix("--set=") for word in words[3:]]).train.requeue
    script.write_text("edited")
    assert CliRunner().invoke(main, arguments).exit_code != 0 and script.read_text() == "edited"
    both = CliRunner().invoke(main, [*arguments, "--print"])
    assert both.exit_code and told(both.output, "--print", "--slurm-array")


@pytest.mark.parametrize(
    ("varied", "message"),
    [
        (["train.lr.peek=1,2"], ("train.lr.peek", "'peak'")),
        (["train.lr.peak"], ("--vary", "KEY.KEY=VALUE,VALUE")),
        (["train.lr.peak=1,,2"], ("--vary", "KEY.KEY=VALUE,VALUE")),
        (["seed=1,2"], ("--vary", "--seeds")),
        (["train.steps=1", "train.steps=2"], ("--vary", "train.steps")),
        (["train.lr.peak=1e-3,1e-3"], ("run_peak=1e-3_seed=0",)),
        (["train.lr.peak=1e-3,0.001"], ("--vary", "run_peak=1e-3_seed=0", "run_peak=0.001_seed=0", "once")),
        (
            ["train.lr.peak=1e-3", 'train.lr={"type":"cosine","peak":1},{"type":"cosine","peak":2}'],
            ("--vary", "equal settings", "inside"),
        ),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(tmp_path, varied, message):
    with pytest.raises(ConfigError, match=naming(*message)):
        trials(write(tmp_path), varied, 1)


@pytest.mark.parametrize("template", ["{tmp}/best", "{tmp}/{{step:08d}}", "~/best"])
def test_trials_that_would_replace_each_others_copies_are_refused(tmp_path, template):
    template = template.format(tmp=tmp_path)
    config = write(tmp_path, tracker__save=[{"type": "local", "save_best_to": template}])
    with pytest.raises(ConfigError, match=naming("tracker.save", Path(template).name, "relative")):
        trials(config, [], 2)
    assert len(trials(config, [], 1)) == 1
    own = [{"type": "local", "save_best_to": "copies/best"}]
    assert len(trials(write(tmp_path, tracker__save=own), [], 2)) == 2


def test_each_trial_has_an_id_of_its_own(tmp_path):
    found = trials(write(tmp_path, tracker__run_id="mine"), [], 2)
    assert [trial.config.tracker.run_id for trial in found] == [None, None]
    found = trials(write(tmp_path, tracker__run_id="mine"), ["tracker.run_id=a,b"], 1)
    assert [trial.config.tracker.run_id for trial in found] == ["a", "b"]


def test_a_sweep_in_which_no_run_begins_ends_with_the_code_of_the_first(tmp_path):
    config, page = write(tmp_path, train__steps=2), tmp_path / "page.html"
    (tmp_path / "toy.npz").unlink()
    result = CliRunner().invoke(main, ["sweep", str(config), "--seeds", "2", "--html", str(page)])
    assert result.exit_code == 65 and result.output.count("toy.npz: 1 problem") == 2
    assert told(result.output, page) and not page.exists()


def test_a_sweep_goes_on_where_it_was_and_its_page_folds_seeds(tmp_path, monkeypatch):
    config, page = write(tmp_path, train__steps=4), tmp_path / "page.html"
    arguments = ["sweep", str(config), "--vary", "train.lr.peak=1e-4,1e-3", "--seeds", "2", "--html", str(page)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.count("finished: 32 samples") == 4
    told = result.output.rpartition("validation/ema/loss")[2].splitlines()[1:5]
    values = [float(line.split()[0]) for line in told]
    assert values == sorted(values) and {line.split()[1] for line in told} == {
        run.name for run in tmp_path.glob("run_*")
    }
    runs = sorted(tmp_path.glob("run_*"))
    written = [(run / "metrics.jsonl").read_bytes() for run in runs]
    texts = Outline(page.read_text(encoding="utf-8")).texts
    for peak in ("0.0001", "0.001"):
        assert f"train.lr.peak={peak}" in texts
    best = [json.loads((run / "result.json").read_text())["best"]["metrics"]["validation/ema/loss"] for run in runs]
    assert any(text.startswith(f"{(best[0] + best[1]) / 2:.4g} (") for text in texts)
    again = CliRunner().invoke(main, arguments[:-2])
    assert again.exit_code == 0 and again.output.count("complete: 32 samples") == 4
    assert [(run / "metrics.jsonl").read_bytes() for run in runs] == written


@pytest.mark.parametrize("status", ["stopped", "finished"])
def test_an_error_of_one_trial_does_not_end_the_others_but_a_stop_does(tmp_path, monkeypatch, status):
    class Outcome:
        status, stopped_by, progress = "finished", None, type("P", (), {"samples_seen": 1})

    class Fake:
        done: list = []

        def __init__(self, config, report):
            self.config = config

        def run(self):
            self.done.append(self.config.seed)
            if self.config.seed == 1:
                raise NotFiniteError("the loss is NaN", first_step=1)
            outcome = Outcome()
            if self.config.seed == 3:  # perhaps while the page of a finished run is written
                outcome.status, outcome.stopped_by = status, "SIGTERM"
            return outcome

    monkeypatch.setattr(sweeping, "Run", Fake)
    found, lines = trials(write(tmp_path), [], 5), []
    assert run_trials(found[:3], lines.append) == BAD_DATA and Fake.done == [0, 1, 2]
    assert any(told(line, "NotFiniteError", "NaN") for line in lines)
    assert run_trials(found, lines.append) == STOPPED and Fake.done[3:] == [0, 1, 2, 3]
    assert run_trials(found[3:4], lines.append) == (STOPPED if status == "stopped" else 0)


def test_one_rank_tells_of_a_trial_and_each_of_its_own_errors(tmp_path, monkeypatch):
    class Fake:
        def __init__(self, config, report):
            self.seed = config.seed

        def run(self):
            error = NotFiniteError(f"seed {self.seed}", first_step=1)
            error.is_relayed = self.seed == 0
            raise error

    monkeypatch.setattr(sweeping, "Run", Fake)
    page, config = tmp_path / "page.html", write(tmp_path)
    (tmp_path / "run_seed=0").mkdir()
    (tmp_path / "run_seed=0" / "config.json").write_bytes(config.read_bytes())
    for rank, has_page in (("1", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        ended = CliRunner().invoke(main, ["sweep", str(config), "--seeds", "2", "--html", str(page)])
        assert ended.exit_code == (BAD_DATA if has_page else 0) and page.exists() is has_page
        assert told(ended.output, "NotFiniteError", "seed 1") and not told(ended.output, "NotFiniteError", "seed 0")
        assert told(ended.output, "trial 1", 2) is has_page
