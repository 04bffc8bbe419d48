"""Two ranks watch each other: they meet, leave together or not at all, and learn of each other's errors.

What happens when ranks die or hang is in test_chaos.py.
"""

import json
import time
from pathlib import Path

import pytest

from dp_prior.job.stop import LOST, Abandoned, RankLostError, Stop, Verdict
from dp_prior.job.watch import heartbeat
from dp_prior.job.watch.heartbeat import Heartbeat
from dp_prior.job.watch.judge import furthest_behind, judge
from dp_prior.job.watch.stacks import Stacks


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

        one.mark("evaluation", 1)  # from now on silence is no start
        beats = one._beats
        for _ in range(3):
            one.leave_if_asked()
            time.sleep(heartbeat.INTERVAL_S)
        found["a wait is progress"] = one._beats > beats

        for number in range(3):  # each time decided anew; one works, the other waits, and either may be asked
            if rank == number % 2:
                stop.ask("request")
            try:
                while rank == 0:
                    one.beat() if number else one.leave_if_asked()
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
    try:
        with watch("lost") as one, one.telling():
            if rank == 0:
                raise RankLostError(Verdict(1, LOST, "rank 1 hangs"))
            one.meet()
    except RankLostError as error:
        found["lost"] = vars(error.verdict)
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
        scenes.extend(json.loads(output.splitlines()[-1]) for output in run_ranks(source, 2, tmp_path))
    return scenes


def test_nobody_goes_on_before_all_are_there(ranks):
    assert [one["met"] for one in ranks] == [[True] * 20] * 2


@pytest.mark.promise("D5")
def test_all_leave_when_one_is_asked_whether_they_work_or_wait_and_go_on_in_step(ranks):
    assert all(one[f"left {number}"] for one in ranks for number in range(3))


def test_a_wait_in_which_a_rank_would_leave_is_no_sign_of_progress(ranks):
    assert [one["a wait is progress"] for one in ranks] == [False] * 2


def test_nothing_is_left_of_a_watch_that_had_nothing_to_tell(ranks):
    assert not ranks[0]["quiet"]  # as seen by the one that has heard that the other went on


@pytest.mark.promise("D4")
def test_error_of_one_is_told_to_the_other_with_its_code_and_trace(ranks):
    assert ranks[1]["mine"] == "rank 1 has bad data"
    told = {"rank": 1, "code": 1, "message": "ValueError: rank 1 has bad data", "reason": "data", "trace": "the trace"}
    assert ranks[0]["theirs"] == told
    assert all("ValueError: rank 1 has bad data" in one["loud"].splitlines()[0] for one in ranks)
    assert all("most recent call first" in one["loud"] for one in ranks)


@pytest.mark.promise("D2")
def test_rank_that_leaves_because_of_another_tells_the_rest(ranks):
    assert ranks[1]["lost"] == vars(Verdict(1, LOST, "rank 1 hangs"))


def test_messages_that_arrive_meanwhile_do_not_change_what_is_judged(monkeypatch, tmp_path):
    """Else a rank could count as furthest behind since a time that was measured for another."""
    named = {"rank": 0, "ranks": 3, "timeout_s": 60, "stop": Stop(), "stacks": tmp_path}
    one = Heartbeat(**named, explain=None, last_words=None)
    one._stacks = Stacks(tmp_path / "rank_0.txt")
    seen = []

    def look(own, peers):
        seen.append(furthest_behind(own, peers))
        one._peers[1].marks += 1  # as the thread that talks does
        one.mark("training", 1)
        one._peers[2].marks += 1
        return seen[-1]

    def decide(own, peers, now, **more):
        assert furthest_behind(own, peers) == seen[-1]
        if len(seen) == 2:
            one._is_over.set()
        return judge(own, peers, now, **more)

    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.001)
    monkeypatch.setattr(heartbeat, "furthest_behind", look)
    monkeypatch.setattr(heartbeat, "judge", decide)
    one._peers[2].marks = 5
    one._watch()
    one._stacks.close()
    assert seen == [{0, 1}, {0, 1}] and one.verdict is None


def test_a_rank_whose_silence_an_error_finds_before_the_judge_is_ended_with_its_stacks_once(monkeypatch, tmp_path):
    ended = []
    monkeypatch.setattr(heartbeat, "end_with_stacks", ended.append)
    named = {"rank": 0, "ranks": 2, "timeout_s": 60, "stop": Stop(), "stacks": tmp_path}
    one = Heartbeat(**named, explain=None, last_words=None)
    one._stacks = Stacks(tmp_path / "rank_0.txt")
    one._peers[1].pidfd, one._peers[1].heard = 77, time.monotonic() - 3600
    try:
        verdict = one._tell(RuntimeError("[gloo/transport/tcp/pair.cc:538] Read error: Connection reset by peer"))
        assert (verdict.rank, verdict.code) == (1, LOST)
        one._end_lost(verdict)  # as the judge does, who comes second
        one._ending.join()
    finally:
        one._stacks.close()
    assert ended == [77]
