"""Starts are played once, in blocks, until enough are lost or the limit of the lost ones is low enough."""

import contextlib
import errno
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import UnreadableError
from dp_prior.envs.toy import ToyConfig
from dp_prior_lab import lost_starts, verdict
from dp_prior_lab.lost_starts import LOST, Losses, find_losses, lost_actions
from dp_prior_lab.outcomes import Outcomes
from tests.messages import naming


class Scripted:
    """A player that loses every third start, or none."""

    name = "scripted"

    def __init__(self, every=3, success=lambda solved: solved):
        self.every, self.success, self.played = every, success, []
        self.record = SimpleNamespace(env=ToyConfig(n_envs=4))

    @contextlib.contextmanager
    def playing(self, first):
        def play(episodes):
            self.played += [first + one for one in episodes]
            return [self.row(first + one) for one in episodes]

        yield play

    def row(self, seed):
        solved, steps = not self.every or seed % self.every > 0, 2 + seed % 2
        told = {"score": float(solved), "success": self.success(solved), "steps": steps}
        return {"seed": seed, **told, "actions": np.full((steps, 2), seed, np.float32)}


def test_it_stops_after_the_block_that_has_enough(tmp_path):
    player = Scripted()
    found = find_losses(player, 300, tmp_path, 0.05, lambda so_far: len(so_far.lost) >= 3)
    assert (found.first_seed, found.starts, found.lost) == (300, 8, [300, 303, 306])
    assert player.played == [*range(300, 308)]
    for seed, steps in ((300, 2), (303, 3), (306, 2)):
        np.testing.assert_array_equal(lost_actions(tmp_path, seed), np.full((steps, 2), seed))
    assert len([*(tmp_path / LOST).iterdir()]) == 3


def test_the_limits_are_those_of_the_verdict(tmp_path, monkeypatch):
    asked = []

    def limits(values, error):
        asked.append((values.tolist(), error))
        return -1.0, -0.9

    monkeypatch.setattr(verdict, "mean_limits", limits)
    found = find_losses(Scripted(), 0, tmp_path, 0.02, lambda so_far: so_far.high < 0.06)
    assert asked == [([1.0, -1.0, -1.0, 1.0], 0.02)]  # 1 for a lost start
    assert found.high == pytest.approx(0.05)


def test_without_a_loss_the_limit_falls_as_the_bets_say(tmp_path):
    found = find_losses(Scripted(every=0), 0, tmp_path, 0.05, lambda so_far: so_far.high < 0.05)
    n, shares = found.starts, verdict.SHARES

    def wealth(n, lost):  # of the bet that more than this share is solved
        return np.mean((1 + shares * lost / (1 - lost)) ** n)

    assert wealth(n, 0.05) >= 2 / 0.05 > wealth(n - 4, 0.05) and not found.lost
    assert wealth(n, found.high) == pytest.approx(2 / 0.05, rel=1e-5)


def test_killed_between_its_files_it_plays_the_block_again_and_gives_the_same(tmp_path, monkeypatch):
    enough = lambda so_far: len(so_far.lost) >= 5  # noqa: E731
    whole = find_losses(Scripted(), 30, tmp_path / "whole", 0.05, enough)

    def die(*_, **__):
        raise KeyboardInterrupt

    for owner, name in ((Outcomes, "write"), (lost_starts, "write_arrays")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, die)
            find_losses(Scripted(), 30, tmp_path / "killed", 0.05, enough)
    again = Scripted()
    assert find_losses(again, 30, tmp_path / "killed", 0.05, enough) == whole
    assert again.played == [*range(30, 30 + whole.starts)]
    last = Scripted()
    assert find_losses(last, 30, tmp_path / "killed", 0.05, enough) == whole and not last.played
    one, other = tmp_path / "whole", tmp_path / "killed"
    assert (one / "outcomes.csv").read_bytes() == (other / "outcomes.csv").read_bytes()
    assert all((lost_actions(one, seed) == lost_actions(other, seed)).all() for seed in whole.lost)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:100])])
def test_lost_actions_that_are_missing_or_cut_off_say_what_to_remove(damage, tmp_path):
    find_losses(Scripted(), 300, tmp_path, 0.05, lambda so_far: len(so_far.lost) >= 1)
    damage(path := tmp_path / LOST / "300.npz")
    with pytest.raises(ConfigError, match=naming(path, "action", 300, f"remove {tmp_path},")):
        lost_actions(tmp_path, 300)


def test_a_file_that_the_system_refuses_to_read_now_is_not_damaged_and_no_reason_to_remove_a_round(
    tmp_path, monkeypatch
):
    def refused(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(lost_starts, "load_npz", refused)
    with pytest.raises(UnreadableError, match=naming("300.npz", os.strerror(errno.EMFILE))) as caught:
        lost_actions(tmp_path, 300)
    assert "remove" not in str(caught.value)


def test_before_the_first_start_nothing_is_known():
    found = Losses.of(Outcomes(), 5, 0.05)
    assert (found.starts, found.lost, found.low, found.high) == (0, [], 0.0, 1.0) and math.isnan(found.share)


def test_an_environment_that_does_not_tell_success_is_refused_on_every_look(tmp_path):
    for _ in range(2):
        with pytest.raises(ConfigError, match=naming("toy", "8 episodes", "is_success", "success_score")):
            find_losses(Scripted(success=lambda _: None), 0, tmp_path, 0.05, lambda so_far: len(so_far.lost) >= 8)


@pytest.mark.parametrize("first", [1, 3])
def test_of_an_environment_that_tells_success_alone_the_other_starts_are_lost(tmp_path, first):
    def enough(so_far):
        return len(so_far.lost) >= 2

    whole = find_losses(Scripted(), first, tmp_path / "whole", 0.05, enough)
    silent = Scripted(success=lambda solved: solved or None)
    silent.record.env = ToyConfig(n_envs=1)  # the first block may have no solved start
    found = find_losses(silent, first, tmp_path / "silent", 0.05, enough)
    assert found.lost == whole.lost[:2] == [one for one in silent.played if one % 3 == 0]
