"""A round finds, asks and trains; killed anywhere it goes on to the same files, and nothing is done twice."""

import contextlib
import itertools
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.data.errors import ChangedError, MissingError
from dp_prior.envs.toy import ToyConfig, demonstrations
from dp_prior.files.locks import FileLock
from dp_prior.files.temporary import is_temporary, temporary_beside
from dp_prior.places.reference import resolve
from dp_prior.run.changes import OtherRunError
from dp_prior.run.config import TrainConfig
from dp_prior.run.ending import deliver
from dp_prior.run.run import Run
from dp_prior.training.trainer import PolicyTrainer
from dp_prior_foreign.convert import convert
from dp_prior_lab import corrections, improve, lost_starts
from dp_prior_lab.improve import ROUNDS, Aim
from dp_prior_lab.players import Player
from dp_prior_lab.trained_configuration import stored_config
from dp_prior_worlds.metaworld_tasks import INSTRUCTIONS
from dp_prior_worlds.renderers.pusht import PushTRendererConfig
from tests.extras import needs
from tests.messages import naming, told
from tests.plugins.dp_prior_lab.test_improved_run import corrected
from tests.tiny import assert_equal, state, tiny, train
from tests.tiny_camera import ENCODER

ROOT = Path(__file__).parents[3]
AIM = Aim(lost=0.1, error=0.05, first_seed=1000, losses=6, points=2, weight=0.5, samples=32)
ROLLOUTS = {"type": "rollout", "name": "toy", "env": {"type": "toy", "n_envs": 4}, "n_episodes": 2, "videos": 0}
ROLLOUTS |= {"first_seed": 100}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose policy solves nothing."""
    return trained(tmp_path_factory.mktemp("first"))


def trained(place, **changes):
    config = tiny(place, train__steps=2, evaluate=[], test=[ROLLOUTS], **changes)
    (place / "config.json").write_text(json.dumps(config))
    assert train(place / "config.json").exit_code == 0
    return place / "run"


def improved(run, out, most=1, aim=AIM):
    said = []
    work = improve.Improvement(str(run), aim, out, said.append)
    return work.rounds(most), not work.is_stopped, said


def contents(out):
    """All that must not depend on where a command was killed."""
    found = {ROUNDS: (out / ROUNDS).read_text().replace(str(out), "")}
    for path in sorted([*out.glob("round_*/*"), *out.glob("round_*/*/*")]):
        name = str(path.relative_to(out))
        if path.suffix == ".npz":
            with np.load(path) as file:
                found |= {f"{name}/{key}": file[key].tolist() for key in file.files}
        elif path.name == "run":
            found |= {f"{name}/{key}": value for key, value in state(path).items()}
        elif path.name == "outcomes.csv":
            found[name] = path.read_text()
    return found


def test_a_round_finds_asks_trains_and_tests(run, tmp_path):
    rounds, is_done, said = improved(run, tmp_path / "out")
    first, last = rounds
    assert is_done and [one.losses.starts for one in rounds] == [8, 8]
    assert (first.losses.first_seed, last.losses.first_seed) == (1000, 1008)
    assert first.episodes + first.unsolved == 16 and first.episodes > 8
    assert last.policy.parent.parent == tmp_path / "out" / "round_1" / "run"
    assert [line for line in said if line.startswith("round")] == [str(one) for one in rounds]
    table = json.loads((tmp_path / "out" / ROUNDS).read_text())
    assert [row["lost"] for row in table["rounds"]] == [[*range(1000, 1008)], [*range(1008, 1016)]] and table[
        "is_reached"
    ] is False


@pytest.mark.slow
def test_a_round_that_is_done_no_longer_needs_the_actions_of_its_lost_episodes(run, tmp_path):
    first, *_ = improved(run, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "round_1" / "lost")
    again, *_ = improved(run, tmp_path / "out")
    assert again == first


@pytest.mark.slow
def test_killed_anywhere_it_goes_on_to_the_same_files(run, tmp_path, monkeypatch):
    improved(run, tmp_path / "whole")
    moments = [
        *((lost_starts.Outcomes, "write", count) for count in (1, 2, 3)),
        *((corrections, "solution", count) for count in (2, 9)),
        (corrections, "write_arrays", 5),
        (Run, "run", 1),
        (PolicyTrainer, "step", 3),
        (improve, "replace_file", 1),
    ]
    for owner, name, count in moments:
        with monkeypatch.context() as patch:
            original, calls = getattr(owner, name), itertools.count(1)

            def deadly(*arguments, original=original, calls=calls, count=count, **named):
                result = original(*arguments, **named)
                if next(calls) == count:
                    raise SystemExit  # as a kill, after what was done
                return result

            patch.setattr(owner, name, deadly)
            with contextlib.suppress(SystemExit):
                improved(run, tmp_path / "killed")
    improved(run, tmp_path / "killed")
    assert_equal(contents(tmp_path / "killed"), contents(tmp_path / "whole"))


def test_what_a_killed_command_left_half_written_is_deleted_by_the_next(run, tmp_path):
    places = [tmp_path / "out" / name for name in ("", "round_1", "round_1/lost", "round_1/episodes")]
    improved(run, tmp_path / "out")
    for place in places:
        temporary_beside(place / "1.npz").touch()
    improved(run, tmp_path / "out")
    assert not [path for place in places for path in place.iterdir() if is_temporary(path)]


@pytest.mark.slow
def test_what_is_done_is_not_done_again_and_more_rounds_go_on(run, tmp_path, monkeypatch):
    before, *_ = improved(run, tmp_path / "out")
    kept = contents(tmp_path / "out")
    with monkeypatch.context() as patch:
        for owner, name in ((Player, "playing"), (corrections, "solution"), (Run, "run")):
            patch.setattr(owner, name, None)
        assert improved(run, tmp_path / "out")[0] == before
    assert_equal(contents(tmp_path / "out"), kept)
    rounds, *_ = improved(run, tmp_path / "out", most=2)
    assert rounds[0] == before[0] and rounds[1].losses == before[1].losses and rounds[1].samples == 32
    assert len(rounds) == 3
    kept = (tmp_path / "out" / ROUNDS).read_bytes()
    with pytest.raises(ConfigError, match=naming("--rounds", "is 1", "2 rounds")):
        improved(f"{run}/", tmp_path / "out")
    assert (tmp_path / "out" / ROUNDS).read_bytes() == kept


def test_it_ends_with_success_when_the_limit_is_low_enough(run, tmp_path, monkeypatch):
    def all_solved(self, first):
        row = {"score": 1.0, "success": True, "steps": 3, "actions": np.zeros((3, 2), np.float32)}
        return contextlib.nullcontext(lambda episodes: [{"seed": first + one, **row} for one in episodes])

    monkeypatch.setattr(Player, "playing", all_solved)
    done = CliRunner().invoke(main, ["improve", str(run), "--out", str(tmp_path / "out"), "--lost", "0.2"])
    assert done.exit_code == 0 and told(done.output, "20.00%")
    assert json.loads((tmp_path / "out" / ROUNDS).read_text())["is_reached"] is True
    (last,) = json.loads((tmp_path / "out" / ROUNDS).read_text())["rounds"]
    assert last["high"] < 0.2 and (last["lost"], last["samples"]) == ([], 0)


def seeing(place):
    """The configuration of a policy of Push-T that sees pictures, drawn from the states, and solves nothing."""
    with np.load(ROOT / "demonstrations" / "pusht.npz") as recorded:
        ends = recorded["episode_ends"][:4]
        arrays = {key: recorded[key][: ends[-1]] for key in ("state", "action")}
    np.savez(place / "pusht.npz", episode_ends=ends, **arrays)
    camera = {"key": "state", "render": {"type": "pusht"}, "size": [12, 12], "region": [0, 0, 0.5, 0.5]}
    rollouts = {**ROLLOUTS, "workers": 1, "env": {"type": "pusht", "camera": [24, 24], "n_envs": 2, "max_steps": 120}}
    return TrainConfig.from_json(json.dumps(tiny(
        place, train__steps=2, evaluate=[], test=[rollouts], data__episodes__path=str(place / "pusht.npz"),
        data__obs={"agent_pos": {"key": "state", "slice": [0, 2]}}, data__images={"camera": camera},
        task__encoders={"camera": {**ENCODER, "crop": None, "jitter": None}},
    )))  # fmt: skip


@pytest.mark.slow
def test_pictures_that_are_drawn_from_states_are_drawn_from_those_of_the_expert(tmp_path):
    needs("gym_pusht", "pusht")
    Run(seeing(tmp_path), report=None).run()
    rounds, *_ = improved(tmp_path / "run", tmp_path / "out", aim=replace(AIM, losses=2, points=1, samples=16))
    assert (rounds[0].episodes, len(rounds)) == (2, 2)
    config = stored_config(resolve(tmp_path / "out" / "round_1" / "run"))
    data = config.data.set_config("corrections_1").create(horizon=4, n_obs_steps=2, n_action_steps=2)
    files = sorted((tmp_path / "out" / "round_1" / "episodes").glob("*.npz"))
    found = data.train.fetch(torch.arange(len(data.train))).cond["camera"][:, -1].numpy()
    for sample in range(0, len(data.train), 40):
        episode, row = data.recorded_at("train", sample)
        with np.load(files[episode]) as file:
            state = file["obs.state"][row]
        (drawn,) = PushTRendererConfig().create((24, 24))(state[None])
        np.testing.assert_array_equal(found[sample], drawn[:12, :12])


def test_pictures_of_states_that_the_environment_does_not_observe_are_refused():
    wanted = {"agent_pos": None, "state": (5,)}
    with pytest.raises(ConfigError, match=naming("data.images", "'state'", (5,), "'toy'", "'agent_pos' (2,)")):
        improve._refuse_unobserved(ToyConfig(), wanted)


def test_errors_of_all_rounds_sum_to_the_error():
    assert sum(AIM.error_of(number) for number in range(1, 10_000)) == pytest.approx(AIM.error, rel=1e-3)


def test_an_expert_that_solves_nothing_is_asked_again_after_its_answers_are_removed(run, tmp_path, monkeypatch):
    answers = tmp_path / "out" / "round_1" / "episodes"
    with monkeypatch.context() as patch:
        patch.setattr(corrections, "solution", lambda *_: None)
        for _ in range(2):
            with pytest.raises(ConfigError, match=naming("toy", "expert", 16, "1000, 1001", f"remove {answers}")):
                improved(run, tmp_path / "out")
    shutil.rmtree(answers)
    rounds, *_ = improved(run, tmp_path / "out")
    assert rounds[0].episodes > 0


def test_without_an_expert_the_lost_seeds_are_told_and_a_persons_episodes_are_taken(run, tmp_path, monkeypatch):
    monkeypatch.setattr(ToyConfig, "expert", None)
    out, mine = tmp_path / "out", tmp_path / "out" / "round_1" / "episodes"
    with pytest.raises(ConfigError, match=naming("toy", "expert()", "1000, 1001", mine)):
        improved(run, out)
    corrected(mine, 3)
    rounds, *_ = improved(run, out)
    assert (rounds[0].episodes, rounds[0].unsolved, len(rounds)) == (3, 0, 2)


@contextlib.contextmanager
def stopping_after_a_step(monkeypatch):
    step = PolicyTrainer.step

    def stopping(self, *arguments):
        self.ranks.stop.ask("SIGTERM")
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PolicyTrainer, "step", stopping)
        yield


def test_a_stop_after_the_last_step_of_a_round_ends_the_command(run, tmp_path, monkeypatch):
    def stopping(*arguments):
        deliver(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("dp_prior.run.run.deliver", stopping)
        assert improved(run, tmp_path / "out")[:2] == ([], False)
    assert (tmp_path / "out" / "round_1" / "run" / "result.json").is_file()
    rounds, is_done, _ = improved(run, tmp_path / "out")
    assert is_done and len(rounds) == 2


def test_a_stopped_training_ends_the_command_with_its_code(run, tmp_path, monkeypatch):
    wanted = ["improve", str(run), "--out", str(tmp_path / "out"), "--losses", "3", "--samples", "32", "--rounds", "1"]
    with stopping_after_a_step(monkeypatch):
        assert CliRunner().invoke(main, wanted).exit_code == 75
    assert CliRunner().invoke(main, wanted).exit_code == 0


def test_episodes_changed_after_a_stopped_training_train_the_round_anew_once_its_run_is_deleted(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(ToyConfig, "expert", None)
    out, place = tmp_path / "out", tmp_path / "out" / "round_1"
    with pytest.raises(ConfigError):
        improved(run, out)
    corrected(place / "episodes", 3)
    with stopping_after_a_step(monkeypatch):
        improved(run, out)
    for source, target, error in (("0_0", "3_0", OtherRunError), ("1_0", "0_0", ChangedError)):
        shutil.copy(place / "episodes" / f"{source}.npz", place / "episodes" / f"{target}.npz")
        with pytest.raises(error, match=naming("delete", place / "run", "anew")) as caught:
            improved(run, out)
        assert "--allow-change" not in str(caught.value)
    shutil.rmtree(place / "run")
    rounds, *_ = improved(run, out)
    assert rounds[0].episodes == 4


@pytest.mark.slow
def test_a_round_is_not_trained_anew_before_one_that_its_policy_played(run, tmp_path):
    out = tmp_path / "out"
    improved(run, out)
    shutil.rmtree(out / "round_1" / "run")
    kept = (out / ROUNDS).read_bytes()
    with pytest.raises(ConfigError, match=naming(out / "round_1" / "run", out / "round_2", "delete")):
        improved(run, out)
    assert (out / ROUNDS).read_bytes() == kept and not (out / "round_1" / "run").exists()
    shutil.rmtree(out / "round_2")
    assert len(improved(run, out)[0]) == 2


def test_other_errors_of_a_stopped_training_keep_their_remedy(run, tmp_path, monkeypatch):
    def fails(self, *arguments):
        raise ConfigError("MuJoCo cannot render here", ["no EGL"], advice="set MUJOCO_GL")

    with stopping_after_a_step(monkeypatch):
        improved(run, tmp_path / "out")
    monkeypatch.setattr(Run, "run", fails)
    with pytest.raises(ConfigError, match=naming("MUJOCO_GL")) as caught:
        improved(run, tmp_path / "out")
    assert "delete" not in str(caught.value)


@pytest.mark.slow
def test_a_policy_of_several_tasks_learns_by_the_instructions_of_its_lost_episodes(tmp_path):
    needs("metaworld", "metaworld")
    tasks = ("reach-v3", "button-press-topdown-v3")
    command = CliRunner().invoke
    made = ["make-demonstrations", "--task", ",".join(tasks), "--episodes", "2", "--out", str(tmp_path / "toy.npz")]
    assert command(main, made, catch_exceptions=False).exit_code == 0
    told = {"key": "task", "texts": "instructions", "folder": {"path": str(tmp_path / "e"), "format": "parquet"}}
    rollouts = {**ROLLOUTS, "env": {"type": "metaworld", "task": tasks, "n_envs": 2, "max_steps": 40}}
    data = {
        **tiny(tmp_path)["data"],
        "obs": {"hand": {"key": "state", "slice": [0, 4]}},
        "language": {"instruction": told},
    }
    config = tiny(tmp_path, train__steps=2, evaluate=[], test=[rollouts], data=data)
    (tmp_path / "config.json").write_text(json.dumps(config))
    embedded = ["embed", "--model", "hashed", "--key", "instruction", "--out", str(tmp_path / "e"), "--config_file"]
    assert command(main, [*embedded, str(tmp_path / "config.json")], catch_exceptions=False).exit_code == 0
    assert train(tmp_path / "config.json").exit_code == 0
    rounds, is_done, _ = improved(tmp_path / "run", tmp_path / "out", aim=replace(AIM, losses=2, points=1))
    assert is_done and rounds[0].episodes == 2
    for seed, task in zip((1000, 1001), tasks, strict=True):
        with np.load(tmp_path / "out" / "round_1" / "episodes" / f"{seed}_0.npz") as file:
            assert {*file["obs.instruction"].tolist()} == {INSTRUCTIONS[task]} and {*file.files} == {
                "action", "obs.hand", "obs.instruction", "lost_seed"
            }  # fmt: skip


def test_wrong_inputs_are_named_with_a_remedy(run, tmp_path):
    improved(run, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for changes, out, parts in (
        ({"weight": 0.7}, "out", [tmp_path / "out", "weight 0.5", "--out"]),
        ({"first_seed": 101}, "new", ["--seeds", 101, "toy"]),
        ({"overrides": ("train.pace=1",)}, "new", ["train.pace"]),
    ):
        with pytest.raises(ConfigError, match=naming(*parts)):
            improved(run, tmp_path / out, aim=Aim(**{**vars(AIM), **changes}))
    with pytest.raises(FileExistsError, match=naming(tmp_path / "full", "--out")):
        improved(run, tmp_path / "full")
    with FileLock.take(tmp_path / "out", folder=True), pytest.raises(FileExistsError, match=naming("--out")):
        improved(run, tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "nothing")):
        improved(tmp_path / "nothing", tmp_path / "new")


def test_a_run_without_rollouts_and_seeds_of_the_data_are_refused(trained_policy, tmp_path):
    with pytest.raises(ConfigError, match=naming(trained_policy, "rollout", "--config_file")):
        improved(trained_policy, tmp_path / "out")
    np.savez(tmp_path / "toy.npz", **demonstrations(4, seed=3), seed=np.array([1, 2, 3, 5000]))
    with pytest.raises(ConfigError, match=naming("--seeds", 1000, 5000)):
        improved(trained(tmp_path), tmp_path / "out")


def test_all_known_seeds_count_where_a_set_has_the_name_of_its_rollouts_and_seeds_of_two_kinds(tmp_path):
    config = json.loads(TrainConfig.from_json(json.dumps(tiny(tmp_path, evaluate=[], test=[ROLLOUTS]))).to_json())
    alone = {key: config["data"][key] for key in ("episodes", "obs", "action")}
    config["data"] = {"type": "mixture", "sets": {"toy": alone}}
    for seeds, known in (({"seed": 1}, 101), ({"seed": 2000, "lost_seed": 3}, 2000), ({"lost_seed": 3000}, 3000)):
        arrays = {key: np.full(4, seed) for key, seed in seeds.items()}
        np.savez(tmp_path / "toy.npz", **demonstrations(4, seed=3), **arrays)
        with pytest.raises(ConfigError, match=naming("--seeds", 50, "toy", known)):
            found = TrainConfig.from_json(json.dumps(config))
            improve._refuse_known_seeds(found, found.data.recorded_sets(), 50)


def test_seeds_of_episodes_that_are_left_out_are_not_known_and_their_files_not_read(tmp_path, monkeypatch):
    """Of a data set on the Hub only the files of the chosen episodes are there."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("dp_prior_foreign.writers.lerobot_writer.FILE_BYTES", 1)
    arrays = demonstrations(4, seed=3)
    lengths = np.diff(arrays["episode_ends"], prepend=0)
    np.savez(tmp_path / "toy.npz", **arrays, seed=np.repeat([1, 2000, 3, 4], lengths))
    convert(tmp_path / "toy.npz", tmp_path / "set", "lerobot", fps=10)
    (tmp_path / "set/data/chunk-000/file-001.parquet").unlink()
    config = tiny(tmp_path, evaluate=[], test=[ROLLOUTS], data__choice={"leave_out": [1]})
    config["data"]["episodes"] = {"type": "lerobot", "path": str(tmp_path / "set")}
    found = TrainConfig.from_json(json.dumps(config))
    improve._refuse_known_seeds(found, found.data.recorded_sets(), 1000)
    with pytest.raises(ConfigError, match=naming("--seeds", 50, 101)):
        improve._refuse_known_seeds(found, found.data.recorded_sets(), 50)


@pytest.mark.slow
@pytest.mark.parametrize("is_mixture", [False, True])
def test_data_that_were_moved_are_found_where_an_override_says(is_mixture, tmp_path):
    data = tiny(tmp_path)["data"]
    name = "a" if is_mixture else "demonstrations"
    if is_mixture:
        alone = {key: data.pop(key) for key in ("episodes", "obs", "action")}
        data = {**data, "type": "mixture", "sets": {"a": alone}}
    first = trained(tmp_path, data=data)
    (tmp_path / "toy.npz").rename(tmp_path / "moved.npz")
    place = f"data.sets.{name}.episodes.path"
    if not is_mixture:
        with pytest.raises(MissingError, match=naming(tmp_path / "toy.npz", place)):
            improved(first, tmp_path / "out")
    aim = replace(AIM, overrides=(f"{place}={tmp_path / 'moved.npz'}",))
    rounds, *_ = improved(first, tmp_path / "out", aim=aim)
    assert len(rounds) == 2


@pytest.mark.slow
def test_an_improved_run_is_improved_again_on_later_seeds(run, tmp_path):
    rounds, *_ = improved(run, tmp_path / "out")
    again = tmp_path / "out" / "round_1" / "run"
    with pytest.raises(ConfigError, match=naming("--seeds", 1000, "corrections_1", 1007)):
        improved(again, tmp_path / "again")
    rounds, *_ = improved(again, tmp_path / "again", aim=Aim(**{**vars(AIM), "first_seed": 2000}))
    config = json.loads((tmp_path / "again" / "round_1" / "run" / "config.json").read_text())
    assert list(config["data"]["sets"]) == ["demonstrations", "corrections_1", "corrections_2"] and len(rounds) == 2
