"""A decision is made once; what several ranks do with it is proved in test_ranks.py."""

from types import SimpleNamespace

import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import StoppedEarly

BROADCAST = "dp_prior.job.ranks.broadcast_object_list"


def ranks(number=0, ranks=1):
    """One of several ranks that have no process group."""
    accelerator = SimpleNamespace(
        process_index=number, num_processes=1, is_main_process=number == 0, device=torch.device("cpu")
    )
    found = Ranks(accelerator)
    found.num_processes = ranks
    return found


def test_one_process_decides_for_itself():
    assert ranks().decide(lambda: 3) == 3


def test_error_comes_through_as_it_is():
    error = ConfigError("--resume", ["no", "never"])

    def refuse():
        raise error

    with pytest.raises(ConfigError) as caught:
        ranks().decide(refuse)
    assert caught.value is error


@pytest.mark.promise("D5")
def test_other_ranks_do_not_choose(monkeypatch):
    sent = ["from the main rank", None, None]
    monkeypatch.setattr(
        "dp_prior.job.ranks.broadcast_object_list", lambda outcome: outcome.__setitem__(slice(None), sent)
    )
    assert ranks(1, 2).decide(lambda: pytest.fail("asked")) == "from the main rank"


@pytest.mark.promise("D4", "D5")
@pytest.mark.parametrize("error", [ConfigError("a.json", ["one", "two"]), FileNotFoundError("no data at x")])
def test_error_of_the_main_rank_is_raised_on_the_others_with_its_message(error, monkeypatch):
    """Also one that takes other arguments than its message, which a pickle could not carry."""
    carried = []
    monkeypatch.setattr(BROADCAST, lambda outcome: carried.append(list(outcome)))

    def refuse():
        raise error

    with pytest.raises(type(error)):
        ranks(0, 2).decide(refuse)
    sent = carried[0]
    monkeypatch.setattr(
        "dp_prior.job.ranks.broadcast_object_list", lambda outcome: outcome.__setitem__(slice(None), sent)
    )
    with pytest.raises(type(error)) as caught:
        ranks(1, 2).decide(lambda: None)
    assert str(caught.value) == str(error)


@pytest.mark.slow
def test_other_ranks_wait_for_a_choice_that_takes_longer_than_a_step_may(run_ranks):
    """As long as they are told to: hashing a large data set, say, before anybody watches."""
    source = """
import datetime, time
from torch.distributed import distributed_c10d
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import StoppedEarly
def limit(seconds):
    distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds))
class Patient(Ranks):
    def _await_main(self, patience_s):
        super()._await_main(patience_s)
        limit(60)  # what follows is no wait for the choice, and may be slow on a busy machine
ranks = Patient(accelerator)
limit(1)
print([ranks.decide(lambda: time.sleep(3 * (turn == 0)) or turn, 60) for turn in range(3)])
"""
    assert run_ranks(source, 2) == ["[0, 1, 2]\n"] * 2


def test_a_stop_of_the_main_rank_is_raised_on_all_with_its_reason(monkeypatch):
    main, other = ranks(0, 2), ranks(1, 2)
    carried = []
    monkeypatch.setattr(BROADCAST, lambda outcome: carried.append(list(outcome)))

    def leave():
        main.stop.ask("SIGTERM")
        raise StoppedEarly("SIGTERM", 0)

    for one in (main, other):
        with pytest.raises(StoppedEarly) as stopped:
            one.decide_unless_stopped(leave)
        assert (stopped.value.reason, stopped.value.rank) == ("SIGTERM", 0)
        monkeypatch.setattr(BROADCAST, lambda outcome: outcome.__setitem__(slice(None), carried[0]))
    assert ranks().decide_unless_stopped(lambda: 3) == 3
