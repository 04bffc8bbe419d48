"""The options of the policy server: limits of observations, actions and frames."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from dp_prior.inference.agent import Agent
from dp_prior.inference.load import load_policy
from dp_prior_client.onboard.action_limits import CHOICES, ActionLimits
from dp_prior_client.onboard.frame_watch import UNWATCHED, FrameLimits
from dp_prior_robot.serve_command import AnswerOptions, serve
from dp_prior_robot.serving.session import Session
from tests.cli.invoked import command
from tests.messages import told
from tests.plugins.dp_prior_robot.export.policies import build


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("serve none --port 70000", ["--port"]),
        ("serve none --merge best", ["--merge", "guided"]),
        ("serve none --idle 0", ["--idle"]),
        ("serve none --as gym", ["--as", "vla-eval"]),
        ("serve none --as vla-eval --dry", ["--dry", "--as openpi"]),
    ],
)
def test_a_line_that_means_nothing_is_a_matter_of_usage(line, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command(*line.split())
    assert done.exit_code == 2 and told(done.output, *named), done.output
    assert not list(tmp_path.iterdir())


def test_a_server_that_would_refuse_before_it_tells_is_not_started(trained_policy):
    done = command("serve", trained_policy, "--port", 0, "--ranges-tell", 5, "--ranges-refuse", 3)
    assert done.exit_code == 64
    assert all(part in done.output for part in ("--ranges-refuse", "refuse is 3", "tell, which is 5", "raise refuse"))


def test_the_limits_of_actions_are_those_of_python_and_of_every_session():
    policy = build()
    option = next(option for option in serve.params if option.name == "actions")
    assert tuple(option.type.choices) == CHOICES and option.default == ActionLimits().beyond
    settings = AnswerOptions(actions="refuse", actions_factor=3.0).settings_for(policy)
    assert settings["actions"] == ActionLimits("refuse", 3.0)
    assert Session(policy, **settings).agent.monitor is not None
    assert command("serve", "none", "--actions", "stop").exit_code == 2


@pytest.mark.parametrize(
    ("frames", "limits"),
    [("tell", FrameLimits(0.5)), ("refuse", FrameLimits(0.5, "refuse", "refuse")), ("ignore", UNWATCHED)],
)
def test_the_options_of_frames_are_the_limits_of_every_session(frames, limits):
    assert AnswerOptions(frames=frames, frame_s=0.5).settings_for(build())["frames"] == limits


@pytest.mark.slow
def test_the_command_serves_benchmarks_until_it_is_asked_to_stop(trained_policy):
    pytest.importorskip("websockets")
    from tests.plugins.dp_prior_robot.serving.test_harness import Client

    line = [sys.executable, "-m", "dp_prior", "serve", str(trained_policy), "--as", "vla-eval", "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            port = next(int(match[1]) for text in server.stdout if (match := re.search(r"ready: ws://.*:(\d+)", text)))
            policy = load_policy(trained_policy)
            agent, client = Agent(policy), Client(port)
            client.send("episode_start", {"task": {}})
            agent.reset()
            for step in range(policy.n_action_steps + 1):
                obs = {key: np.full(shape[1:], 0.1 * step) for key, shape in policy.spec.cond_shapes.items()}
                np.testing.assert_allclose(client.act(obs), agent.act(obs), rtol=1e-4, atol=1e-5)
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
