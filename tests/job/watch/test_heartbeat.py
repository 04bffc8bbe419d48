"""Two ranks watch each other: they meet, leave together or not at all, and learn of each other's errors.

What happens when ranks die or hang is in test_chaos.py.
"""

import json
import time
from pathlib import Path

import pytest

from dp_prior.job.stop import Abandoned, Stop
from dp_prior.job.watch.heartbeat import Heartbeat
from dp_prior.job.watch.judge import RankLostError, Verdict


def scene(rank: int, place: Path) -> dict:
    """What one of two ranks sees."""
    stop, found = Stop(), {}

    def explain(error):
        return Verdict(rank, 1, f"{type(error).__name__}: {error}", "data", "the trace")

    def watch(stacks):
        named = {"rank": rank, "ranks": 2, "timeout_s": 60, "stop": stop, "stacks": place / stacks}
        return Heartbeat(**named, explain=explain, last_words=lambda verdict: None)

    with watch("quiet") as one:
        met = []
        for number in range(20):
            if number % 2 == rank:
                time.sleep(0.02)
            (place / f"{number}_{rank}").touch()
            one.meet()
            met.append((place / f"{number}_{1 - rank}").exists())
        found["met"] = met

        for number in range(3):  # each time decided anew; one works, the other waits, and either may be asked
            if rank == number % 2:
                stop.ask("request")
            try:
                while rank == 0:
                    one.beat()
                    time.sleep(0.01)
                one.meet(may_leave=True)
            except Abandoned:
                found[f"left {number}"] = True
            one.meet()
        one.meet()

    try:
        with watch("loud") as one, one.telling():
            if rank == 1:
                raise ValueError("rank 1 has bad data")
            one.meet()
    except ValueError as error:
        found["mine"] = str(error)
    except RankLostError as error:
        found["theirs"] = vars(error.verdict)
    found["quiet"] = (place / "quiet").exists()
    found["loud"] = (place / "loud" / f"rank_{rank}.txt").read_text()
    return found


@pytest.fixture(scope="module")
def scenes():
    return []


@pytest.fixture
def ranks(run_ranks, tmp_path, scenes):
    if not scenes:
        source = (
            "import json, sys; from pathlib import Path; from tests.job.watch.test_heartbeat import scene\n"
            "print(json.dumps(scene(rank, Path(sys.argv[1]))))"
        )
        scenes.extend(json.loads(output.splitlines()[-1]) for output in run_ranks(source, 2, tmp_path, timeout=120))
    return scenes


def test_nobody_goes_on_before_all_are_there(ranks):
    assert [one["met"] for one in ranks] == [[True] * 20] * 2


@pytest.mark.promise("D5")
def test_all_leave_when_one_is_asked_whether_they_work_or_wait_and_go_on_in_step(ranks):
    assert all(one[f"left {number}"] for one in ranks for number in range(3))


def test_nothing_is_left_of_a_watch_that_had_nothing_to_tell(ranks):
    assert not ranks[0]["quiet"]  # as seen by the one that has heard that the other went on


@pytest.mark.promise("D4")
def test_error_of_one_is_told_to_the_other_with_its_code_and_trace(ranks):
    assert ranks[1]["mine"] == "rank 1 has bad data"
    told = {"rank": 1, "code": 1, "message": "ValueError: rank 1 has bad data", "reason": "data", "trace": "the trace"}
    assert ranks[0]["theirs"] == told
    assert all("ValueError: rank 1 has bad data" in one["loud"].splitlines()[0] for one in ranks)
    assert all("most recent call first" in one["loud"] for one in ranks)
