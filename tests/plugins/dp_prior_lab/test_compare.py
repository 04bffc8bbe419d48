"""Policies play the same starts until they are told apart; what was played is kept."""

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.files.locks import FileLock
from dp_prior.run.config import TrainConfig
from dp_prior_lab.compare import Rules, compare_outcomes, compare_policies
from dp_prior_lab.outcomes import OUTCOMES, Outcomes
from dp_prior_lab.players import Player
from tests.messages import naming, told
from tests.tiny import tiny

ROLLOUTS = {"type": "rollout", "name": "toy", "env": {"type": "toy", "n_envs": 4, "max_steps": 8}, "videos": 0}


class Fake:
    """A player whose scores are drawn by its rate and the start."""

    def __init__(self, name, rate, record):
        self.name, self.rate, self.record, self.played = name, rate, record, []
        self.identity = {"policy": name}

    def playing(self, first_seed):
        return _Playing(self, first_seed)


class _Playing:
    def __init__(self, player, first):
        self.player, self.first = player, first

    def __enter__(self):
        return self.play

    def __exit__(self, *_):
        pass

    def play(self, episodes):
        rows = []
        for seed in (self.first + one for one in episodes):
            self.player.played.append(seed)
            score = float(np.random.default_rng((seed, len(self.player.name))).random() < self.player.rate)
            rows.append({"seed": seed, "score": score, "success": bool(score), "steps": 3})
        return rows


@pytest.fixture
def fakes(tmp_path):
    record = configured(tmp_path)[1].test[0]
    return lambda *rates: [Fake("p" * (number + 1), rate, record) for number, rate in enumerate(rates)]


def configured(tmp_path):
    """A file with rollouts of the toy, and the configuration in it."""
    path = tmp_path / "rollouts.json"
    path.write_text(json.dumps(tiny(tmp_path, test=[ROLLOUTS])), encoding="utf-8")
    return path, TrainConfig.from_json_path(path)


def run(players, out, **rules):
    said = []
    return compare_policies(players, Rules(**rules), out, said.append).comparison, said


def test_they_play_the_same_starts_until_they_are_told_apart(fakes, tmp_path):
    good, poor = players = fakes(0.95, 0.2)
    known, said = run(players, tmp_path / "out")
    assert known.pairs()[0].better == 0 and known.rollouts < 100
    assert good.played == poor.played == list(range(good.record.first_seed, good.record.first_seed + len(good.played)))
    assert len(said) == len(good.played) / 10 and "told apart" in said[-1]


def test_equal_policies_use_all_starts_and_are_not_told_apart(fakes, tmp_path):
    known, _ = run(fakes(1.0, 1.0), tmp_path / "out", most=25)
    (pair,) = known.pairs()
    assert (pair.better, pair.starts, known.rollouts) == (None, 25, 50)


def test_a_policy_that_is_told_apart_from_all_plays_no_more(fakes, tmp_path):
    *_, poor = players = fakes(0.9, 0.88, 0.02)
    known, _ = run(players, tmp_path / "out", most=60)
    assert len(poor.played) < 60 == len(players[0].played)
    letters = known.letters()
    assert letters[0] == letters[1] != letters[2]


def test_a_comparison_that_was_killed_goes_on_where_it_stopped(fakes, tmp_path, monkeypatch):
    whole, _ = run(fakes(0.9, 0.6), tmp_path / "whole", most=40)
    write = Outcomes.write
    for stop in (0, 1, 0, 2):  # of the eight writes of a whole one
        writes = itertools.count()

        def write_or_die(self, path, stop=stop, writes=writes):
            write(self, path)
            if next(writes) == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(Outcomes, "write", write_or_die)
        with pytest.raises(KeyboardInterrupt):
            run(fakes(0.9, 0.6), tmp_path / "killed", most=40)
    monkeypatch.setattr(Outcomes, "write", write)
    again, _ = run(fakes(0.9, 0.6), tmp_path / "killed", most=40)
    np.testing.assert_array_equal(again.scores, whole.scores)
    last = fakes(0.9, 0.6)
    run(last, tmp_path / "killed", most=40)
    assert [player.played for player in last] == [[], []]


def test_more_starts_go_on_with_those_there_are(fakes, tmp_path):
    run(fakes(0.8, 0.7), tmp_path / "out", most=15)
    more = fakes(0.8, 0.7)
    known, _ = run(more, tmp_path / "out", most=30)
    assert known.rollouts == 60 and [len(player.played) for player in more] == [15, 15]


def test_other_policies_and_other_files_are_not_overwritten(fakes, tmp_path):
    run(fakes(0.8, 0.7), tmp_path / "out", most=10)
    before = (tmp_path / "out" / OUTCOMES).read_bytes()
    with pytest.raises(ConfigError, match=naming("p, pp;", "--out")):
        run(fakes(0.8, 0.7, 0.6), tmp_path / "out", most=10)
    with pytest.raises(ConfigError, match=naming("measure", "--out")):
        run(fakes(0.8, 0.7), tmp_path / "out", most=10, measure="success")
    changed = fakes(0.8, 0.7)
    changed[1].identity = {"policy": "pp", "packages": {"mujoco": "4"}}
    with pytest.raises(ConfigError, match=naming("pp", "packages;", "--out")):
        run(changed, tmp_path / "out", most=10)
    assert (tmp_path / "out" / OUTCOMES).read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(FileExistsError, match=naming("mine", "--out")):
        run(fakes(0.8, 0.7), tmp_path / "mine", most=10)


def test_the_order_of_the_policies_is_no_other_comparison(fakes, tmp_path):
    known, _ = run(fakes(0.9, 0.6), tmp_path / "out", most=20)
    turned = fakes(0.9, 0.6)[::-1]
    again, _ = run(turned, tmp_path / "out", most=20)
    np.testing.assert_array_equal(again.scores, known.scores[::-1])
    assert turned[0].played == []


def test_one_process_at_a_time_compares_in_a_folder(fakes, tmp_path):
    out = tmp_path / "out"
    run(fakes(0.8, 0.7), out, most=10)
    with FileLock.take(out, folder=True), pytest.raises(FileExistsError, match=naming(out, "--out")):
        run(fakes(0.8, 0.7), out, most=20)


def test_a_policy_under_two_names_is_not_compared(fakes, tmp_path):
    players = fakes(0.8, 0.8)
    players[1].identity = players[0].identity
    with pytest.raises(ConfigError, match=naming("pp", "p;")):
        run(players, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_actions_that_are_not_finite_lose(fakes, tmp_path):
    players = fakes(0.9, 0.9)
    play = players[0].playing

    def broken(first_seed):
        playing = play(first_seed)
        whole = playing.play
        playing.play = lambda episodes: [{**row, "score": float("nan"), "success": None} for row in whole(episodes)]
        return playing

    players[0].playing = broken
    for measure in ("score", "success"):
        known, _ = run(players, tmp_path / measure, measure=measure)
        assert known.pairs()[0].better == 1 and set(known.scores[0]) == {0.0}


def test_a_score_beyond_the_stated_limits_is_refused_before_it_is_kept(fakes, tmp_path, monkeypatch):
    play = _Playing.play

    def beyond(self, episodes):
        return [
            {**row, "score": 1.5 if row["seed"] == self.first + 1 else row["score"]} for row in play(self, episodes)
        ]

    monkeypatch.setattr(_Playing, "play", beyond)
    players = fakes(0.9, 0.2)
    with pytest.raises(ConfigError, match=naming("'toy'", "0 to 1", players[0].record.first_seed + 1, 1.5)):
        run(players, tmp_path / "c")
    assert not (tmp_path / "c" / OUTCOMES).exists()
    run(players, tmp_path / "by_success", measure="success", most=20)


def test_a_score_that_misses_a_limit_by_rounding_lies_on_it(fakes, tmp_path, monkeypatch):
    play = _Playing.play

    def rounded(self, episodes):
        return [{**row, "score": row["score"] * (1 + 1e-7) - 1e-9} for row in play(self, episodes)]

    monkeypatch.setattr(_Playing, "play", rounded)
    known, _ = run(fakes(0.9, 0.2), tmp_path / "c", most=20)
    assert known.scores.min() == 0 and known.scores.max() == 1
    run(fakes(0.9, 0.2), tmp_path / "c", most=20)


def test_an_environment_that_tells_no_success_is_named(fakes, tmp_path):
    players = fakes(0.9, 0.9)
    for player in players:
        playing = player.playing(0)
        playing.play = lambda episodes: [{"seed": 1, "score": 0.5, "success": None, "steps": 1}]
        player.playing = lambda _, playing=playing: playing
    _, said = run(players, tmp_path / "out", most=10, measure="success")
    assert "'toy'" in said[-1] and "success_score" in said[-1]


def test_a_file_of_outcomes_gives_the_verdict_of_the_rollouts(fakes, tmp_path):
    known, _ = run(fakes(0.9, 0.5), tmp_path / "out")
    again = compare_outcomes(tmp_path / "out" / OUTCOMES, (0.0, 1.0), 0.05)
    assert again.names == ["p", "pp"] and again.comparison.pairs() == known.pairs()


def test_a_file_of_one_policy_is_refused(tmp_path):
    path = tmp_path / "trial.csv"
    path.write_text("start,policy,score\n1,mine,1\n")
    with pytest.raises(ConfigError, match=naming("'mine'")):
        compare_outcomes(path, (0.0, 1.0), 0.05)


def test_the_command_compares_checkpoints_and_writes_result_and_page(trained_policy, tmp_path):
    names = [f"{trained_policy}@latest", f"{trained_policy}@step_00000021"]
    arguments = ["compare", *names, "--config_file", configured(tmp_path)[0], "--most", 8, "--round", 4]
    out = tmp_path / "out"
    result = CliRunner().invoke(main, [str(one) for one in (*arguments, "--out", out)])
    assert result.exit_code == 0, result.output
    assert told(result.output, "8 of", "8 starts") and told(result.output, "16 rollouts", 16, "0 saved")
    document = json.loads((out / "verdict.json").read_text())
    assert [one["policy"] for one in document["policies"]] == names and document["pairs"][0]["starts"] == 8
    page = (out / "verdict.html").read_text()
    assert all(name in page for name in names) and "<svg" in page
    result = CliRunner().invoke(main, ["compare", str(out / OUTCOMES), "--error", "0.1"])
    assert result.exit_code == 0 and "at most 0.1" in result.output


def test_an_episode_is_named_by_its_seed_wherever_the_first_one_is(trained_policy, tmp_path):
    player = Player(str(trained_policy), None, configured(tmp_path)[1], "cpu")
    with player.playing(100_003) as play:
        rows = play(range(0, 5))
    with player.playing(100_000) as play:
        again = play(range(3, 8))
    assert [row["seed"] for row in rows] == [row["seed"] for row in again] == list(range(100_003, 100_008))
    assert len(rows) == 5 and all(0 <= row["score"] <= 1 for row in rows)


def test_commands_that_cannot_work_say_what_is_missing(trained_policy, tmp_path):
    def said(*arguments):
        result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
        assert result.exit_code != 0
        return result.output

    other = f"{trained_policy}@latest"
    assert "--out" in said(trained_policy, other)
    assert "--config_file" in said(trained_policy, other, "--out", tmp_path / "a")
    assert "twice" in said(other, other, "--out", tmp_path / "a")
    assert "--range" in said(tmp_path / "none.csv", "--range", 1, 0)
    assert "--range" in said(tmp_path / "none.csv", "--range", 0, "inf")
    assert "two policies" in said(trained_policy)
    for table in (tmp_path / "none.csv", configured(tmp_path)[0]):
        assert told(said(trained_policy, table, "--out", tmp_path / "a"), table.name, "stands alone")
    missing = said(tmp_path / "none.csv")
    assert told(missing, "none.csv", "CSV", "start, policy", "score") and "Errno" not in missing
    assert not (tmp_path / "a").exists()
