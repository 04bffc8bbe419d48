"""A run that is killed and started again is the run that was never killed, bit for bit."""

import json
import signal
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from dp_prior.checkpoints.format import MODEL_FILES
from dp_prior.places.local import copy_checkpoint
from dp_prior.places.reference import resolve
from dp_prior.training.trainer import PolicyTrainer
from tests import forks
from tests.messages import told
from tests.tiny import OVER_TIME, assert_equal, experiment, read_rows, rows, state, tiny, train, train_and_die, write

ACCUMULATING = {"train__accumulation": 2, "data__batch_size": 4}


@pytest.fixture(scope="module")
def accumulated(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("accumulated")
    assert train(write(place, **ACCUMULATING)).exit_code == 0
    return place / "run"


def assert_same_run(run: Path, reference: Path) -> None:
    assert_equal(state(run), state(reference))
    assert rows(run) == rows(reference)
    scored = [json.loads((one / "result.json").read_text()) for one in (run, reference)]
    for score in scored:
        score["best"]["metrics"] = {k: v for k, v in score["best"]["metrics"].items() if k not in OVER_TIME}
        score["best"].pop("checkpoint"), score.pop("media")
    assert scored[0] == scored[1]


@pytest.mark.promise("B1", "B6")
@pytest.mark.parametrize(
    ("moment", "count"),
    [
        pytest.param("step", 1, marks=pytest.mark.slow),  # before there is any checkpoint
        pytest.param("step", 5, marks=pytest.mark.slow),  # one is due but not asked for
        pytest.param("step", 7, marks=pytest.mark.slow),  # the last step that lies in the first epoch
        ("step", 13),  # mid-epoch, between two checkpoints
        pytest.param("step", 24, marks=pytest.mark.slow),  # all is done but the last save
        pytest.param("file of a checkpoint", 2, marks=pytest.mark.slow),  # the first checkpoint, with one file written
        pytest.param("file of a checkpoint", 24, marks=pytest.mark.slow),  # a later one
        pytest.param("rename of a checkpoint", 3, marks=pytest.mark.slow),  # whole, but named in no index
        pytest.param("delivery of a checkpoint", 2, marks=pytest.mark.slow),
        pytest.param("evaluation", 2, marks=pytest.mark.slow),
        pytest.param("save", 3, marks=pytest.mark.slow),  # a line is written, and the checkpoint of its step is not
    ],
)
def test_killed_run_started_again_equals_the_uninterrupted_one(moment, count, tmp_path, trained_policy):
    config = write(tmp_path)
    assert train_and_die(config, moment, count) == -signal.SIGKILL
    assert train(config).exit_code == 0
    assert_same_run(tmp_path / "run", trained_policy)


@pytest.mark.promise("B1")
def test_run_killed_between_two_micro_batches_equals_the_uninterrupted_one(tmp_path, accumulated):
    config = write(tmp_path, **ACCUMULATING)
    for count in (1, 15):  # the first half of the first step, then of the eighth
        assert train_and_die(config, "micro-batch", count) == -signal.SIGKILL
    assert train(config).exit_code == 0
    assert_same_run(tmp_path / "run", accumulated)


LEARNED = {  # timesteps that learn, estimates shown to the network, dropped conditions: there is more to remember
    "task__backbone": {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8},
    "task__diffusion": {
        "schedule": {"type": "cosine", "steps": 10},
        "timesteps": {"type": "loss_second_moment", "history": 2},
        "variance": {"type": "learned_range"},
        "self_condition": 0.5,
        "guidance": {"scale": 2.0},
    },
    "task__sampler": {"type": "ddpm"},
    "task__cond_dropout": {"agent_pos": 0.3, "goal": 0.3},
}


@pytest.mark.promise("B1", "B4")
def test_run_with_all_that_remembers_equals_the_uninterrupted_one(tmp_path):
    reference = tmp_path / "reference"
    reference.mkdir()
    assert train(write(reference, **LEARNED)).exit_code == 0
    config = write(tmp_path, **LEARNED)
    assert train_and_die(config, "step", 13) == -signal.SIGKILL
    assert train(config).exit_code == 0
    assert_same_run(tmp_path / "run", reference / "run")


def test_commands_killed_and_given_again_equal_the_uninterrupted_run(tmp_path, trained_policy):
    config = write(tmp_path)
    for moment, count in [("step", 1), ("file of a checkpoint", 3), ("evaluation", 2)]:
        done = launch(config, f"die({moment!r}, {count})")
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = launch(config)
    assert done.returncode == 0, done.stderr
    assert "finished: 192 samples in 24 steps" in done.stdout
    assert_same_run(tmp_path / "run", trained_policy)


def launch(config: Path, before: str = "") -> CompletedProcess[str]:
    """`python train_policy.py --config_file ...` as a process of its own, with a line of code run before it."""
    program = (
        "import runpy, sys; from tests.tiny import die; "
        f"{before or 'pass'}; sys.argv[:] = ['train_policy.py', '--config_file', {str(config)!r}]; "
        "runpy.run_path('train_policy.py', run_name='__main__')"
    )
    return forks.call(["-c", program])


def weights(run: Path) -> dict:
    """All tensors that training makes; not the running means, which depend on when they were last logged."""
    return {name: value for name, value in state(run).items() if ":" in name and ":means." not in name}


@pytest.mark.parametrize(
    "change",
    [
        {"evaluate": [], "train__log_every": {"steps": 7}},
        pytest.param(
            {
                "evaluate__0__every": {"steps": 1},
                "evaluate__0__batch_size": 3,
                "train__log_every": {"steps": 1},
                "train__save_every": {"steps": 1},
                "checkpoints__keep_every": 1,
                "test": [{"type": "loss", "name": "again", "split": "train"}],
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["never evaluated", "always evaluated, logged and saved, and tested at the end"],
)
def test_evaluating_logging_and_saving_more_or_less_never_change_the_run(change, tmp_path, trained_policy):
    assert train(write(tmp_path, **change)).exit_code == 0
    assert_equal(weights(tmp_path / "run"), weights(trained_policy))


def everything_in(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Time and content of each file but those that tell of the process."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name not in ("run.lock", "exit.json")]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_complete_run_says_so_and_writes_nothing_anew(tmp_path):
    config = write(tmp_path, train__steps=6)
    first = train(config)
    assert "finished: 48 samples in 6 steps" in first.output
    before = everything_in(tmp_path / "run")
    again = train(config)
    assert again.exit_code == 0
    assert told(again.output, "complete", "--set train.steps=")
    after = everything_in(tmp_path / "run")
    assert after.keys() == before.keys()
    for name in ("checkpoints/index.json", "config.json"):  # written again, and the same
        one, other = before.pop(str(tmp_path / "run" / name)), after.pop(str(tmp_path / "run" / name))
        assert one[1] == other[1]
    assert after == before


def test_complete_run_goes_on_with_a_larger_budget_and_says_what_changed(tmp_path):
    config = write(tmp_path, train__steps=6)
    train(config)
    more = train(config, "--set", "train.steps=9", "--resume", "must")
    assert more.exit_code == 0
    assert told(more.output, "train.steps", 6, 9)
    assert "finished: 72 samples in 9 steps" in more.output
    assert [row["step"] for row in rows(tmp_path / "run")] == [2, 4, 6, 7, 8, 9]


def test_must_and_never_refuse_what_they_forbid(tmp_path):
    config = write(tmp_path, train__steps=2)
    must = train(config, "--resume", "must")
    assert must.exit_code == 64
    assert told(must.output, tmp_path / "run", "--resume auto")
    assert train(config, "--resume", "never").exit_code == 0
    never = train(config, "--resume", "never")
    assert never.exit_code == 64
    assert told(never.output, tmp_path / "run", "step_00000002", "--set tracker.data_path=", "--resume auto")


@pytest.mark.promise("B4")
def test_worse_value_after_a_resume_is_not_the_best(tmp_path, monkeypatch):
    """The score is 1 / step up to the kill and worse from then on."""
    config = tiny(tmp_path, evaluate__0__every__steps=1)
    saved = []
    submit, evaluate = PolicyTrainer.save, PolicyTrainer.evaluate

    def score(self, evaluators):
        step = self.progress.global_step
        found = evaluate(self, evaluators)
        return found and found | {"validation/ema/loss": 1 / step if step <= 4 else 1.0 + step}

    def save(self, metrics, is_best):
        saved.append((self.progress.global_step, is_best))
        submit(self, metrics, is_best)

    monkeypatch.setattr(PolicyTrainer, "evaluate", score)
    monkeypatch.setattr(PolicyTrainer, "save", save)
    config["train"]["steps"] = 5
    experiment(config).run()
    assert saved == [(1, True), (2, True), (3, True), (4, True), (5, False)]
    saved.clear()
    config["train"]["steps"] = 12
    outcome = experiment(config).run()
    assert saved == [(10, False), (12, False)]
    assert outcome.best.name == "step_00000004"
    assert outcome.result()["best"]["step"] == 4
    best = state(tmp_path / "run")["progress"]["best"]
    assert (best["value"], best["step"]) == (0.25, 4)


@pytest.mark.promise("B2")
def test_every_sample_is_seen_once_an_epoch_across_restarts(tmp_path, monkeypatch):
    seen = []
    step = PolicyTrainer.step

    def recording(self, batches):
        seen.extend(sample for batch in batches for sample in batch.ids.tolist())
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", recording)
    for steps in (3, 11, 23):
        experiment(tiny(tmp_path, train__steps=steps)).run()
    n = len(set(seen))
    assert len(seen) == 23 * 8
    for start in range(0, len(seen) - n + 1, n):
        assert sorted(seen[start : start + n]) == list(range(n))


def test_run_goes_on_from_the_checkpoint_of_another_one(tmp_path, trained_policy):
    """What `tracker.load.path` names is where the run begins, as long as it has no checkpoint of its own."""
    first = tmp_path / "first"
    first.mkdir()
    train(write(first, train__steps=10, train__lr={"type": "constant"}))
    load = {"type": "local", "path": str(first / "run")}
    second = write(tmp_path, train__steps=12, train__lr={"type": "constant"}, tracker__load=load)
    done = train(second)
    assert done.exit_code == 0, done.output
    assert "sample 80" in done.output
    assert [row["step"] for row in rows(tmp_path / "run")] == [12]
    assert len(read_rows(first / "run")) == 6


def test_a_checkpoint_of_another_run_is_named_as_everywhere(tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    train(write(first, train__steps=8, checkpoints__keep_every=4, train__save_every={"steps": 4}))
    for where, sample in (("run@step_00000004", 32), ("run@latest", 64), ("run", 64)):
        place = tmp_path / where
        place.mkdir()
        load = {"type": "local", "path": str(first / where)}
        done = train(write(place, train__steps=8, tracker__load=load))
        assert done.exit_code == 0 and f"sample {sample}" in done.output, done.output


def test_a_place_without_a_checkpoint_that_can_be_resumed_from_is_told(tmp_path):
    """A misspelt path began from scratch in silence, and an export was a traceback."""
    load = {"type": "local", "path": str(tmp_path / "misspelt")}
    config = write(tmp_path, train__steps=2, tracker__load=load)
    must = train(config, "--resume", "must")
    assert must.exit_code == 64
    assert told(must.output, tmp_path / "run", tmp_path / "misspelt", "(tracker.load)")
    done = train(config)
    assert done.exit_code == 0
    assert told(done.output, "start from", "nothing", tmp_path / "misspelt", "(tracker.load)")
    copy_checkpoint(resolve(tmp_path / "run"), tmp_path / "export", MODEL_FILES)
    for path, *named in (
        ("export", tmp_path / "export", "train.init_from"),
        ("run@step_00000009", "'step_00000009'", "latest, best, step_00000002"),
    ):
        load["path"] = str(tmp_path / path)
        (tmp_path / "other").mkdir(exist_ok=True)
        refused = train(write(tmp_path / "other", train__steps=2, tracker__load=load))
        assert refused.exit_code in (64, 74) and told(refused.output, *named), refused.output
        assert "Traceback" not in refused.output and not (tmp_path / "other/run/checkpoints/step_00000002").exists()


def test_weights_do_not_depend_on_torchs_random_state(tmp_path, trained_policy):
    torch.manual_seed(12345)
    train(write(tmp_path))
    assert_equal(state(tmp_path / "run"), state(trained_policy))
