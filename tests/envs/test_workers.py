"""Worker processes give the numbers of one process, fail by name, and never outlive their parent."""

import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.envs import workers
from dp_prior.envs.toy import ToyConfig
from dp_prior.envs.workers import WorkerError, Workers, is_divisible
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.tensors.batch import Spec
from dp_prior_worlds.pusht import PushTConfig
from tests.messages import naming

pytest.importorskip("gymnasium")

from tests.envs.troubled import opened, troubled  # noqa: E402


def wait_for_end(pids, seconds=30.0):
    """Fails unless the processes end in time."""
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with open(process, "rb", buffering=0):
            assert select.select([process], [], [], seconds)[0], f"process {pid} lives on"


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key in found:
        assert found[key].dtype == expected[key].dtype
        np.testing.assert_array_equal(found[key], expected[key])


@pytest.mark.parametrize(
    ("record", "n_workers", "scale"),
    [
        (ToyConfig(n_envs=7, max_steps=20), 3, 1.0),
        pytest.param(PushTConfig(n_envs=3, camera=(32, 48), render_size=96), 2, 512.0, marks=pytest.mark.slow),
    ],
)
def test_every_number_and_pixel_is_that_of_one_process(record, n_workers, scale):
    if record.type == "pusht":
        pytest.importorskip("gym_pusht")
    one, (several, pids) = record.create(), opened(record, n_workers)
    random = np.random.default_rng(0)
    assert len(set(pids)) == n_workers and os.getpid() not in pids
    for name in ("n_envs", "max_steps", "fps", "obs_shapes", "action_dim"):
        assert getattr(several, name) == getattr(one, name)
    for n in (record.n_envs, 1, 2):  # fewer episodes than workers, too
        seeds = random.integers(2**62, size=n)
        assert_same(several.reset(seeds), one.reset(seeds))
        for step in range(22):
            for env in (several, one):
                env.is_watched, env.n_filmed = step % 3 == 0, step % 4 if record.type == "pusht" else 0
            actions = random.uniform(-0.2 * scale, scale, (n, 2))
            found, expected = several.step(actions), one.step(actions)
            assert_same(found.obs, expected.obs)
            assert_same(found.info, expected.info)
            np.testing.assert_array_equal(found.reward, expected.reward)
            np.testing.assert_array_equal(found.done, expected.done)
        for rows in ([n - 1], list(range(n)), list(range(n))[::-1]):
            np.testing.assert_array_equal(several.render(rows), one.render(rows))
        for env in (several, one):
            env.is_watched = True
    with pytest.raises(ValueError, match=naming("9 seeds", "1 to")):
        several.reset(range(9))
    with pytest.raises(ValueError, match=naming("row 0", "[nan, nan]")):
        several.step(np.full((2, 2), np.nan))
    several.close()
    several.close()
    wait_for_end(pids, 0)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (troubled("raise"), ("2 of 2", "ValueError", "gripper")),
        pytest.param(
            troubled("die"),
            ("2 of 2", "SIGKILL", "workers"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_worker_that_fails_is_one_error_and_ends_all(record, message):
    workers, pids = opened(record, 2)
    workers.reset([0, 1])
    workers.step(np.zeros((2, 2)))
    with pytest.raises(WorkerError, match=naming(*message)) as caught:
        workers.step(np.zeros((2, 2)))
    if "gripper" in message:
        assert "in step" in caught.value.__notes__[0] and "troubled.py" in caught.value.__notes__[0]
    wait_for_end(pids, 0)


def test_a_wait_for_a_simulator_that_hangs_ends_when_it_is_asked_to():
    asked = []

    def waiting():
        if asked:
            raise TimeoutError

    workers, pids = opened(troubled("hang"), 2, waiting)
    workers.reset([0, 1])
    workers.step(np.zeros((2, 2)))
    asked.append(True)
    with pytest.raises(TimeoutError):
        workers.step(np.zeros((2, 2)))
    wait_for_end(pids, 0)


def test_what_the_user_has_to_change_is_told_as_it_is_without_workers():
    workers, pids = opened(troubled("refuse"), 2)
    workers.reset([0, 1])
    workers.step(np.zeros((2, 2)))
    with pytest.raises(ConfigError) as caught:
        workers.step(np.zeros((2, 2)))
    assert str(caught.value) == str(ConfigError("no camera", ["there is no display"], advice="set MUJOCO_GL"))
    wait_for_end(pids, 0)


def test_an_environment_that_a_worker_cannot_make_is_one_error():
    with pytest.raises(WorkerError, match=naming("1 of 1", "ModuleNotFoundError", "no_such_package")):
        Workers(troubled(id="Nowhere-v0"), 1)
    assert is_divisible(PushTConfig()) and is_divisible(troubled()) and not is_divisible(ToyConfig())
    assert not is_divisible(troubled(id="Class-v0"))  # may be a class of the main script


@pytest.mark.slow
def test_signals_of_schedulers_and_terminals_are_left_to_the_parent():
    workers, pids = opened(troubled(), 1)
    assert os.getpgid(pids[0]) != os.getpgid(0)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"):
        os.kill(pids[0], getattr(signal, name))
        workers.reset([0])
    workers.close()


PARENT = """
import sys
import numpy as np
from tests.envs.troubled import opened, troubled
workers, pids = opened(troubled(sys.argv[1]), 1)
workers.reset([0, 1])
print(*pids, flush=True)
while True:
    workers.step(np.zeros((2, 2)))
"""


SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGTERM", marks=SLOW), pytest.param("SIGINT", marks=SLOW)])
@pytest.mark.parametrize("trouble", ["none", pytest.param("hang", marks=SLOW)])
def test_no_worker_outlives_its_parent(name, trouble):
    """Ctrl-C goes to the whole process group. A worker that hangs in its environment gets a few seconds."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, trouble], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:  # fmt: skip
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 1
        os.killpg(parent.pid, getattr(signal, name))
        assert parent.wait() != 0
    wait_for_end(pids)


# In the evaluator -----------------------------------------------------------------------------------------------------


def looking(kind):
    return SimpleNamespace(spec=Spec(x_shape=(8, 2), cond_shapes={"front": (2, 8, 8, 3)}, kinds={"front": kind}))


@pytest.mark.parametrize(
    ("kind", "fields", "n_cores", "n_ranks", "expected"),
    [
        ("image", {}, 8, 1, 8),
        ("image", {}, 8, 2, 4),  # ranks divide the cores
        ("image", {}, 64, 1, 25),  # as many as episodes that run side by side
        ("image", {"n_episodes": 6}, 64, 1, 6),
        ("image", {}, 1, 1, 0),
        ("image", {}, 2, 2, 0),
        ("vector", {}, 8, 1, 0),
        ("vector", {"workers": 3}, 8, 1, 3),
        ("image", {"workers": 0}, 8, 1, 0),
        ("image", {"env": troubled(id="Class-v0")}, 8, 1, 0),
        ("image", {"env": ToyConfig()}, 8, 1, 0),
        ("image", {"env": troubled(id="Class-v0"), "workers": 2}, 8, 1, 2),
    ],
)
def test_workers_are_as_many_as_pay(monkeypatch, kind, fields, n_cores, n_ranks, expected):
    monkeypatch.setattr(workers, "cores", lambda: n_cores)
    monkeypatch.setattr(workers, "Workers", lambda record, n_workers, waiting: n_workers)
    config = RolloutConfig(**{"env": troubled(n_envs=25), "videos": 0, **fields})
    ranks = SimpleNamespace(process_index=0, num_processes=n_ranks)
    found = config.create().open(looking(kind), ranks, config.n_episodes)
    assert (found if isinstance(found, int) else 0) == expected
