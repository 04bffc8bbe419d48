"""A decision is made once; what several ranks do with it is proved in test_ranks.py."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.job.ranks import decide

BROADCAST = "dp_prior.job.ranks.broadcast_object_list"


class Ranks:
    num_processes = 1

    def __init__(self, is_main_process):
        self.is_main_process = is_main_process


def test_one_process_decides_for_itself():
    assert decide(Ranks(True), lambda: 3) == 3


def test_error_comes_through_as_it_is():
    error = ConfigError("--resume", ["no", "never"])

    def refuse():
        raise error

    with pytest.raises(ConfigError) as caught:
        decide(Ranks(True), refuse)
    assert caught.value is error


@pytest.mark.promise("D5")
def test_other_ranks_do_not_choose(monkeypatch):
    sent = ["from the main rank", None, None]
    monkeypatch.setattr(
        "dp_prior.job.ranks.broadcast_object_list", lambda outcome: outcome.__setitem__(slice(None), sent)
    )
    other = Ranks(False)
    other.num_processes = 2
    assert decide(other, lambda: pytest.fail("asked")) == "from the main rank"


@pytest.mark.promise("D4", "D5")
@pytest.mark.parametrize("error", [ConfigError("a.json", ["one", "two"]), FileNotFoundError("no data at x")])
def test_error_of_the_main_rank_is_raised_on_the_others_with_its_message(error, monkeypatch):
    """Also one that takes other arguments than its message, which a pickle could not carry."""
    carried = []
    monkeypatch.setattr(BROADCAST, lambda outcome: carried.append(list(outcome)))
    main, other = Ranks(True), Ranks(False)
    main.num_processes = other.num_processes = 2

    def refuse():
        raise error

    with pytest.raises(type(error)):
        decide(main, refuse)
    sent = carried[0]
    monkeypatch.setattr(
        "dp_prior.job.ranks.broadcast_object_list", lambda outcome: outcome.__setitem__(slice(None), sent)
    )
    with pytest.raises(type(error)) as caught:
        decide(other, lambda: None)
    assert str(caught.value) == str(error)


def test_other_ranks_wait_for_a_choice_that_takes_longer_than_a_step_may(run_ranks):
    """As long as they are told to: hashing a large data set, say, before anybody watches."""
    source = """
import datetime, time
from torch.distributed import distributed_c10d
from dp_prior.job.ranks import decide
distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))
print([decide(accelerator, lambda: time.sleep(3 * (turn == 0)) or turn, 60) for turn in range(3)])
"""
    assert run_ranks(source, 2) == ["[0, 1, 2]\n"] * 2
