"""What the table of Meta-World compares with."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import metaworld as table
from dp_prior.run.config import TrainConfig

ROOT = Path(__file__).parents[2]


def test_the_open_loop_baseline_is_the_mean_of_the_episodes_that_still_run(tmp_path):
    actions = np.array([[1.0], [2.0], [3.0], [5.0], [6.0]])
    np.savez(tmp_path / "d.npz", action=actions, episode_ends=[3, 5])
    act = table.open_loop(tmp_path / "d.npz")
    assert [act(np.zeros((2, 39)), step).tolist() for step in (0, 1, 2, 9)] == [
        [[mean], [mean]] for mean in (3.0, 4.0, 3.0, 3.0)
    ]


@pytest.mark.slow
def test_the_expert_solves_what_standing_still_does_not(monkeypatch):
    names = pytest.importorskip("metaworld.env_dict", reason="NOT CHECKED: metaworld is not installed")
    assert set(table.TASKS) <= set(names.ALL_V3_ENVIRONMENTS)
    monkeypatch.setattr(table, "MetaWorldConfig", partial(table.MetaWorldConfig, n_envs=2, max_steps=100))
    seeds = range(100_000, 100_004, 2)
    assert table.solved_by("button-press-v3", table.expert("button-press-v3"), seeds) == 2
    assert table.solved_by("button-press-v3", lambda states, step: np.zeros((len(states), 4)), seeds) == 0


@pytest.mark.parametrize(("name", "episodes"), [("MT10", 20), ("MT10_camera", 20), ("MT50_camera", 4)])
def test_every_seed_of_a_set_is_tested_once_by_the_expert_of_its_task(name, episodes, tmp_path, monkeypatch):
    """The table's rows are of the seeds whose task they name, the row of all is the sum, and one is of the groups."""
    played = {}

    def solved_by(task, act, seeds):
        played[task] = list(seeds)
        return len(seeds) // 2

    tables = {
        test: [
            {"instruction": text, "success_rate": share, "episodes": episodes} for text in table.INSTRUCTIONS.values()
        ]
        for test, share in (("test", 0.75), ("shuffled", 0.25))
    }
    for test, rows in tables.items():
        for step in (5, 12):  # the last counts
            place = tmp_path / f"{name}/media/{test}_{step:08d}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps({"tables": {f"{test}/by_instruction": rows if step == 12 else []}}))
    asked = []
    monkeypatch.setattr(table, "solved_by", solved_by)
    monkeypatch.setattr(table, "expert", lambda task: None)
    monkeypatch.setattr(table, "embed_data", lambda *words: asked.append(words))
    monkeypatch.setattr(table.training, "train", lambda *words: asked.append(words))
    tasks = table.SETS[name.removesuffix("_camera")]
    (tmp_path / f"MT{len(tasks)}.npz").touch()
    rows = list(table.of_set(name, tmp_path, 3, {}))
    assert sorted(sum(played.values(), [])) == list(range(100_000, 100_000 + episodes * len(tasks)))
    assert all(tasks[seed % len(tasks)] == task for task, seeds in played.items() for seed in seeds)
    assert [row.split(" | ")[0] for row in rows[: len(tasks)]] == list(tasks) and len(asked) == 2
    assert asked[1][0] == table.CONFIGS_OF_SETS[name] and asked[0][2].stem == asked[1][0]
    assert [cell.split()[0] for cell in rows[len(tasks)].split(" | ")] == ["all", "50%", "75%", "25%"]
    groups = [row.split(" | ")[1:] for row in rows[len(tasks) + 1 :]]
    assert groups == (
        [[f"{part}.0% ({part}%, {part}%, {part}%, {part}%)" for part in (50, 75, 25)]] * (len(tasks) > 10)
    )


def test_the_mean_of_the_groups_weighs_a_group_once_however_many_tasks_it_has():
    """28 easy tasks, 11 medium, 6 hard and 5 very hard ones, of which a policy solves 7, 5, 2 and all."""
    names = {group: [f"{name}-v3" for name in text.split()] for group, text in table.DIFFICULTIES.items()}
    harder = sum(names.values(), [])
    easy = [task for task in table.INSTRUCTIONS if task not in harder]
    assert [len(easy), *map(len, names.values())] == [28, 11, 6, 5] and set(harder) < set(table.INSTRUCTIONS)
    solved = {*easy[:7], *names["medium"][:5], *names["hard"][:2], *names["very hard"]}
    shares = {task: table.Share(10 * (task in solved), 10) for task in table.INSTRUCTIONS}
    assert table.mean_of_groups(shares) == "50.9% (25%, 45%, 33%, 100%)"


def test_the_configurations_of_sets_test_every_task_equally_often():
    for name, config in table.CONFIGS_OF_SETS.items():
        tests = TrainConfig.from_json_path(ROOT / f"configs/policy/{config}.json").test
        assert [(one.name, [*one.shuffle]) for one in tests] == [("test", []), ("shuffled", ["instruction"])]
        for one in tests:
            assert one.env.task == name.removesuffix("_camera") and one.first_seed == table.FIRST_SEED
            assert one.n_episodes == (10 if name == "MT50_camera" else 20) * len(table.SETS[one.env.task])
            assert bool(one.env.cameras) == ("camera" in name)
