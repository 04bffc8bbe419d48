"""LeRobot's own programs, unmodified, on a mock robot: DP_PRIOR_LEROBOT names a Python that has LeRobot.

Run with lerobot 0.6.1 on Python 3.12, torch 2.11, huggingface_hub 1.33 and numpy 2.2.
"""

import json
import os
import pickle
import pty
import shlex
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dp_prior import Agent, load_policy
from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.inference.chunking import Guided, Prefix
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import DepthRange, Spec
from dp_prior.tensors.pixels.resize import Fit
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_worlds.pusht import PushTConfig
from tests.cli.invoked import command
from tests.messages import told
from tests.plugins.dp_prior_robot.export.policies import build
from tests.plugins.dp_prior_robot.serving.running import running
from tests.plugins.standin import NAME, ROOT
from tests.tasks.test_policy import statistics
from tests.tiny import train, write

PYTHON = os.environ.get("DP_PRIOR_LEROBOT")
HERE = Path(__file__).parent
KEYS = ("--keys", "agent_pos=observation.state[0:2]", "--keys", "goal=observation.state[2:4]")
NAMED = (
    '--policy.state_names=["x.pos", "y.pos", "goal_x.pos", "goal_y.pos"]',
    '--policy.action_names=["x.pos", "y.pos"]',
    "--policy.fps=100",
    "--fps=100",
)
SIZE = (64, 64)
TOLD = Spec(
    x_shape=(16, 2),
    cond_shapes={"agent_pos": (1, 2), "goal": (1, 2), "order": (1, 8)},
    kinds={"order": "text"},
    embedders={"order": HashedConfig(dimension=8)},
)
DRIVER = """
import pickle, shlex, sys
from lerobot.utils.import_utils import register_third_party_plugins
register_third_party_plugins()
from lerobot.scripts import lerobot_rollout
from lerobot_policy_dp_prior.modeling_dp_prior import DPPriorPolicy

inner, chunks = DPPriorPolicy.predict_action_chunk, []
def watched(self, batch, inference_delay=0, prev_chunk_left_over=None):
    found = inner(self, batch, inference_delay=inference_delay, prev_chunk_left_over=prev_chunk_left_over)
    rest = None if prev_chunk_left_over is None else prev_chunk_left_over.numpy().copy()
    chunks.append((batch["observation.state"].numpy().copy(), inference_delay, rest, found.numpy().copy()))
    return found
DPPriorPolicy.predict_action_chunk = watched

for line in open(sys.argv[1]).read().splitlines():
    sys.argv[1:] = shlex.split(line)
    try:
        lerobot_rollout.main()
        print("ENDED", flush=True)
    except Exception as error:
        print("REFUSED", " ".join(str(error).split()), flush=True)
with open("chunks", "wb") as file:
    pickle.dump(chunks, file)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PYTHON is None, reason="NOT CHECKED: DP_PRIOR_LEROBOT names no Python that has LeRobot"),
]


class Programs:
    """LeRobot's programs with the plug-in and the robot, in a folder of their own."""

    def __init__(self, place):
        self.place = place
        for name in (NAME, "lerobot_robot_toy"):  # what an installation adds to the files
            metadata = place / "installed" / f"{name}-1.dist-info" / "METADATA"
            metadata.parent.mkdir(parents=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (place / "driver.py").write_text(DRIVER)
        packages = (HERE.parents[1], HERE.parents[1] / "plugins", ROOT / "src", HERE, place / "installed")
        path = os.pathsep.join(map(str, packages))
        home = {"HF_HOME": str(place / "home"), "HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
        self.environment = os.environ | home | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}

    def rollouts(self, *lines, press=()):
        """Run lerobot-rollout once per line, one after another. Returns what each ended with, and all output.

        Args:
            press: (seconds, key) after `recording started` in each rollout.
        """
        (self.place / "lines").write_text("\n".join(shlex.join(map(str, line)) for line in lines))
        keyboard, terminal = pty.openpty()
        process = subprocess.Popen(
            [PYTHON, "driver.py", "lines"], cwd=self.place, env=self.environment, text=True,
            stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

        def type_keys():
            for pause, key in press:
                time.sleep(pause)
                os.write(keyboard, key)

        output = []
        for line in process.stdout:
            output.append(line)
            if "recording started" in line:
                threading.Thread(target=type_keys).start()
        assert process.wait() == 0, "".join(output)
        os.close(keyboard)
        os.close(terminal)
        return [line.rstrip() for line in output if line.startswith(("ENDED", "REFUSED"))], "".join(output)

    def log(self, name):
        """(steps, state, action) that the robot was given and took."""
        rows = [json.loads(line) for line in (self.place / name).read_text().splitlines()]
        values = [np.array([list(row[key].values()) for row in rows], np.float32) for key in ("seen", "action")]
        return [row["step"] for row in rows], *values


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "lerobot").mkdir()
    return Programs(tmp_path / "lerobot")


def on_robot(folder, log, *more):
    robot = ("--robot.type=toy", f"--robot.log={log}", "--return_to_initial_position=false")
    return (f"--policy.path={folder}", *robot, *more)


def export(run, folder, *more):
    done = command("export", run, folder, "--format", "lerobot", *more)
    assert done.exit_code == 0, done.output
    return done.output


def check_chunks(programs, agent, **more):
    """The chunks of the one rollout under rtc are those of our own agent, and most of them continue others."""
    agent.reset(0)
    chunks = pickle.loads((programs.place / "chunks").read_bytes())
    for state, delay, rest, found in chunks:
        prefix = None if rest is None or not rest.any() else rest[: np.flatnonzero(rest.any(1))[-1] + 1]
        delay = 0 if prefix is None else min(delay, len(prefix))
        obs = {"agent_pos": state[:, :2], "goal": state[:, 2:], **more}
        assert np.array_equal(found[0], agent.infer(obs, prefix, delay)["chunk"])
    assert len(chunks) > 10 and sum(rest is not None and rest.any() for _, _, rest, _ in chunks) > 5


def test_rollouts_act_as_our_own_agents_and_refuse_other_robots(trained_policy, programs, tmp_path):
    one = write(tmp_path, task__n_obs_steps=1, task__horizon=16, task__n_action_steps=4)
    assert train(one).exit_code == 0
    export(trained_policy, tmp_path / "two_seen", *KEYS)
    export(tmp_path / "run", tmp_path / "one_seen", *KEYS)
    two_seen, one_seen = tmp_path / "two_seen", tmp_path / "one_seen"
    ended, output = programs.rollouts(
        on_robot(two_seen, "sync", *NAMED, "--robot.ticks=1000"),
        on_robot(one_seen, "rtc", *NAMED, "--robot.ticks=200", "--inference.type=rtc"),
        on_robot(two_seen, "none", *NAMED, "--inference.type=rtc"),
        on_robot(two_seen, "none", *NAMED, "--fps=30"),
        on_robot(two_seen, "none", *NAMED, "--robot.unit=57.3"),
        on_robot(two_seen, "none", *NAMED, "--robot.joints=y.pos x.pos goal_x.pos"),
        on_robot(tmp_path / "run", "none"),
    )
    assert ended[:2] == ["ENDED", "ENDED"] and len(ended) == 7, output
    for line, named in zip(
        ended[2:], ("one observation", "--fps=100", "units", "['goal_y.pos']", "instantiate"), strict=True
    ):
        assert line.startswith("REFUSED") and named in line, line
    _, states, actions = programs.log("sync")
    agent = Agent(load_policy(trained_policy))
    agent.reset(0)
    expected = [agent.act({"agent_pos": state[:2], "goal": state[2:]}) for state in states]
    assert len(actions) == 1000 and np.array_equal(actions, expected)
    check_chunks(programs, Agent(load_policy(tmp_path / "run"), merge=Guided(max_weight=10.0)))


def test_two_arms_a_turned_hand_and_depth_are_read_by_name_and_forces_are_refused_by_name(programs, tmp_path):
    arms, turn = ["left_x.pos", "right_x.pos", "left_y.pos"], ["wx.pos", "wy.pos", "wz.pos"]
    policy = build(
        Spec(
            x_shape=(8, 2),
            cond_shapes={"arms": (1, 3), "turn": (1, 3), "far": (1, 12, 16, 1)},
            kinds={"far": "depth"},
            fits={"far": Fit(size=(12, 16))},
            depths={"far": DepthRange(near=0.1, far=2.0)},
            rotations={"turn": (RotationSlice(slice=(0, 3), form="axis_angle"),)},
            names={"arms": arms, "turn": turn, "x": arms[:2]},
            fps=100.0,
        ),
        n_obs_steps=1,
        encoders={"far": {"type": "resnet", "width": 16, "blocks": [1, 1], "stem": "conv"}},
    )
    policy.save_pretrained(tmp_path / "policy")
    key = "observation.images.front_depth"
    keys = ("arms=observation.state[2:3,0:1,1:2]", "turn=observation.state[4:7]", f"far={key}")
    export(tmp_path / "policy", tmp_path / "arm", *(part for each in keys for part in ("--keys", each)))
    known = ("--fps=100", "--robot.ticks=30", f'--policy.frame_sizes={{"{key}": [48, 64]}}')
    joints = "right_x.pos fx.N wz.pos wy.pos lift.pos wx.pos left_y.pos left_x.pos base.vel"
    robot = {"joints": joints, "commanded": "right_x.pos left_x.pos", "depth": "front_depth 48 64"}

    def driven(log, *more, **change):
        options = [f"--robot.{name}={value}" for name, value in {**robot, **change}.items()]
        return on_robot(tmp_path / "arm", log, *known, *options, *more)

    forced = json.dumps(["right_x.pos", "left_y.pos", "fx.N", "any.pos", *turn])
    ended, output = programs.rollouts(
        driven("sync"),
        driven("none", f"--policy.state_names={forced}"),
        driven("none", joints=joints.replace("wy.pos", "ee.wy")),
        driven("none", commanded="right_x.pos left_x.pos base.vel"),
        driven("none", depth=""),
    )
    assert ended[0] == "ENDED" and len(ended) == 5, output
    expected = (["['fx.N']", ".pos or .vel"], ["['wy.pos']"], ["['base.vel']"], [key])
    for line, named in zip(ended[1:], expected, strict=True):
        assert line.startswith("REFUSED") and all(part in line for part in named), line
    agent, rows = Agent(policy), (programs.place / "sync").read_text().splitlines()
    agent.reset(0)
    for row in map(json.loads, rows):
        state = {name: [row["seen"][one] for one in names] for name, names in (("arms", arms), ("turn", turn))}
        metres = distances(row["step"]).astype(np.float32) * np.float32(0.001)
        assert [*row["action"].values()] == agent.act({**state, "far": metres})[[1, 0]].tolist()
    assert len(rows) == 30


def distances(step):
    """See `lerobot_robot_toy.toy.distances`."""
    return np.random.default_rng(step).integers(0, 3000, (48, 64, 1)).astype(np.uint16)


def test_instructions_prefixes_and_the_hub_reach_a_policy_and_its_errors_end_the_rollout(programs, hub, tmp_path):
    policy = build(TOLD, n_obs_steps=1, horizon=16, prefix={"max_delay": 6})
    policy.save_pretrained(tmp_path / "policy")
    export(tmp_path / "policy", tmp_path / "arm", *KEYS, "--repo", "me/arm")
    programs.environment |= {"HF_HUB_OFFLINE": "0", **hub.environment(tmp_path / "other_home")}
    task, rtc = "--task=go left", "--inference.type=rtc"
    ended, output = programs.rollouts(
        on_robot("me/arm", "sync", *NAMED, task, "--robot.ticks=40"),
        on_robot("me/arm", "rtc", *NAMED, task, "--robot.ticks=150", rtc),
        on_robot("me/arm", "none", *NAMED),
        on_robot("me/arm", "none", *NAMED, rtc),
    )
    assert ended[:2] == ["ENDED", "ENDED"] and len(ended) == 4, output
    assert all(line.startswith("REFUSED") and "--task" in line and "'order'" in line for line in ended[2:]), ended
    _, states, actions = programs.log("sync")
    agent = Agent(policy)
    agent.reset(0)
    for state, action in zip(states, actions, strict=True):
        obs = {"agent_pos": state[:2], "goal": state[2:], "order": "go left"}
        assert np.array_equal(agent.act(obs), action)
    check_chunks(programs, Agent(policy, merge=Prefix()), order="go left")


def test_a_dry_run_moves_no_arm_and_logs_what_the_policy_would_do(programs, tmp_path):
    shapes, far = {"agent_pos": (1, 2), "goal": (1, 2)}, (1e6, 1e6)
    answers = (("agent_pos", 0), ("agent_pos", 1))
    motion = ActionMotion(low=(-1.0, -1.0), high=(1.0, 1.0), step=far, answers=answers, distance=far)
    policy = build(Spec(x_shape=(16, 2), cond_shapes=shapes, motion=motion), n_obs_steps=1, horizon=16)
    policy.save_pretrained(tmp_path / "policy")
    export(tmp_path / "policy", tmp_path / "arm", *KEYS)
    dry = (*NAMED, "--policy.dry_run=true", "--robot.ticks=150")
    ended, output = programs.rollouts(
        on_robot(tmp_path / "arm", "sync", *dry, "--policy.log=ticks"),
        on_robot(tmp_path / "arm", "rtc", *dry, "--policy.log=ticks_rtc", "--inference.type=rtc"),
        on_robot(tmp_path / "arm", "wet", *NAMED, "--robot.ticks=150"),
    )
    assert ended == ["ENDED"] * 3 and "dry run, step 0" in output, output
    for name in ("sync", "rtc"):
        _, states, actions = programs.log(name)
        assert len(actions) > 100 and (states == states[0]).all() and (actions == states[0, :2]).all(), name
    assert np.ptp(programs.log("wet")[1][:, :2], axis=0).max() > 0.1, "the policy itself moves this arm"
    agent = Agent(policy)
    agent.reset(0)
    arrays = np.load(programs.place / "ticks" / "episode_000000.npz")
    would = [agent.act({"agent_pos": states[0, :2], "goal": states[0, 2:]}) for _ in arrays["action"]]
    assert np.array_equal(arrays["action"], would) and arrays["is_dry"].all()
    assert len(np.load(programs.place / "ticks_rtc" / "episode_000000.npz")["chunk_row"]) > 1


def test_what_a_rollout_records_is_inspected_trained_on_and_rolled_out_again(trained_policy, programs, tmp_path):
    begun = sum(os.times()[:4])
    export(trained_policy, tmp_path / "first", *KEYS)
    recording = programs.place / "recorded"
    named = [*NAMED[:2], "--policy.fps=20", "--fps=20", "--dataset.fps=20", f"--dataset.root={recording}"]
    recorded = ("--strategy.type=dagger", "--strategy.record_autonomous=true", "--teleop.type=toy_leader",
                "--strategy.smooth_handover=false", "--dataset.repo_id=me/rollout_toy", "--dataset.push_to_hub=false",
                "--dataset.single_task=reach", "--play_sounds=false", "--robot.ticks=80")  # fmt: skip
    first = on_robot(tmp_path / "first", "first", *named, *recorded, f"--robot.camera=front {SIZE[0]} {SIZE[1]}")
    keys = ((0.5, b" "), (0.3, b"\t"), (0.8, b"\t"), (0.3, b" "))  # pause, correct, end the correction, go on
    ended, output = programs.rollouts(first, (*first, "--resume=true"), press=keys)
    assert ended == ["ENDED", "ENDED"], output

    done = command("inspect", recording)
    assert done.exit_code == 0 and told(done.output, "corrections", '"weights"'), done.output
    data = {
        "episodes": {"type": "lerobot", "path": str(recording)},
        "obs": {"state": {"key": "observation.state"}},
        "images": {"eye": {"key": "observation.images.front", "size": [16, 16]}},
        "action": {"key": "action"},
        "weights": {"key": "intervention", "values": {"true": 4}},
        "split": {"train": 0.5, "val": 0.5},
        "batch_size": 8,
    }
    encoder = {"type": "resnet", "width": 16, "blocks": [1, 1], "stem": "conv"}
    (tmp_path / "again").mkdir()
    done = train(write(tmp_path / "again", data=data, task__encoders={"eye": encoder}, train__steps=8))
    assert done.exit_code == 0, done.output
    said = export(tmp_path / "again" / "run", tmp_path / "second")
    assert "not known" not in said, said

    second = on_robot(tmp_path / "second", "second", "--fps=20", "--robot.ticks=30")
    camera = f"--robot.camera=front {SIZE[0]} {SIZE[1]}"
    other = on_robot(tmp_path / "second", "other", "--fps=20")
    ended, output = programs.rollouts((*second, camera), (*other, "--robot.camera=front 48 64"), other)
    assert ended[0] == "ENDED" and "64x48" in ended[1] and "front" in ended[2], output
    rolled = programs.log("second")
    assert "observation 'eye'" not in output, output
    dead = (*second, camera, "--robot.black_at=10", "--policy.frame_s=60")  # black frames repeat, too
    frozen = (*second, camera, "--robot.freeze_at=5", "--policy.frame_s=0.4")
    ended, said = programs.rollouts(dead, (*dead, "--policy.frames=refuse"), frozen, (*dead, "--policy.frames=ignore"))
    assert [line[:7] for line in ended] == ["ENDED", "REFUSED", "ENDED", "ENDED"], said
    assert told(ended[1], "'eye'", "brightness", "0 of 255", "frames.unlike"), said
    dark, still = (line for line in said.splitlines() if "WARNING" in line and "'eye'" in line)
    assert told(dark, "brightness", "0 of 255", "in training") and told(still, "same frame", "0.4 s", "frame_s"), said
    agent = Agent(load_policy(tmp_path / "again" / "run"))
    agent.reset(0)
    for step, state, action in zip(*rolled, strict=True):
        seen = np.random.default_rng(step).integers(0, 256, (*SIZE, 3), np.uint8)  # see `lerobot_robot_toy.toy.frame`
        assert np.array_equal(agent.act({"state": state, "eye": seen}), action)
    assert sum(os.times()[:4]) - begun < 180, "CPU seconds, of all programs together"


def test_a_strangers_folder_reaches_no_file_machine_or_module_of_the_user(trained_policy, programs, tmp_path):
    (programs.place / "home").mkdir()
    (programs.place / "home" / "key").write_text("SECRET")
    export(trained_policy, tmp_path / "sound", *KEYS)
    for name in ("server", "program", "adapter"):
        shutil.copytree(tmp_path / "sound", tmp_path / name)
    with socket.create_server(("127.0.0.1", 0)) as machine:
        machine.setblocking(False)
        address = f"ws://127.0.0.1:{machine.getsockname()[1]}"
        config = json.loads((tmp_path / "sound" / "config.json").read_text())
        hostile = config | {"address": address, "token_file": "~/key", "texts": "~"}
        (tmp_path / "server" / "config.json").write_text(json.dumps(hostile))
        shutil.rmtree(tmp_path / "server" / "policy")
        (tmp_path / "adapter" / "config.json").write_text(json.dumps(config | {"use_peft": True}))
        step = {"class": "subprocess.Popen", "config": {"args": ["touch", str(tmp_path / "RAN")]}}
        (tmp_path / "program" / "policy_preprocessor.json").write_text(json.dumps({"name": "x", "steps": [step]}))
        ended, output = programs.rollouts(
            on_robot(tmp_path / "server", "none", *NAMED),
            on_robot(tmp_path / "server", "none", *NAMED, "--policy.address=nobody"),
            on_robot(tmp_path / "program", "none", *NAMED),
            on_robot(tmp_path / "adapter", "none", *NAMED),
        )
        with pytest.raises(BlockingIOError):
            machine.accept()
    parts = (f"--policy.address={address}", "HOST:PORT", "subprocess.Popen", "instantiate")
    for line, part in zip(ended, parts, strict=True):
        assert line.startswith("REFUSED") and part in line, output
    assert told(output, "token_file", "'~/key'", "--policy.token_file=") and "SECRET" not in output
    assert not (tmp_path / "RAN").exists()


def test_an_evaluation_gives_our_own_scores(programs, tmp_path):
    see = {"kinds": {"camera": "image"}, "fits": {"camera": Fit(size=(96, 96))}}
    spec = Spec(x_shape=(8, 2), cond_shapes={"agent_pos": (2, 2), "camera": (2, 96, 96, 3)}, **see)
    encoder = {"type": "resnet", "width": 16, "blocks": [1, 1], "stem": "conv"}
    policy = build(spec, encoders={"camera": encoder})
    policy.save_pretrained(tmp_path / "policy")
    export(tmp_path / "policy", tmp_path / "new", "--keys", "agent_pos=observation.state",
           "--keys", "camera=observation.image")  # fmt: skip
    size = ("--env.observation_height=96", "--env.observation_width=96", "--env.episode_length=60")
    episodes = ("--eval.n_episodes=2", "--eval.batch_size=2", "--eval.use_async_envs=false", "--seed=100000")
    line = (f"--policy.path={tmp_path / 'new'}", "--env.type=pusht", *size, *episodes, "--output_dir=out")
    program = Path(PYTHON).with_name("lerobot-eval")
    where = {"cwd": programs.place, "env": programs.environment}
    done = subprocess.run([program, *line], **where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((programs.place / "out" / "eval_info.json").read_text())
    theirs = found["per_task"][0]["metrics"]["max_rewards"]
    env = PushTConfig(n_envs=2, camera=(96, 96), max_steps=60).create()
    agent, obs, is_over = VectorAgent(policy), env.reset([100000, 100001]), np.zeros(2, bool)
    agent.reset(range(2))
    while not is_over.all():
        step = env.step(agent.act(obs, active=~is_over))
        obs, is_over = step.obs, step.done
    assert theirs == pytest.approx(step.info["score"].tolist(), abs=0.03), "single pixels differ between the renderers"


class Sending(nn.Module):
    """A policy whose chunks hold one number; each call takes the next one."""

    max_delay, horizon, n_obs_steps, n_action_steps = None, 16, 1, 1

    def __init__(self, spec, *numbers):
        super().__init__()
        self.spec, self.numbers = spec, iter((numbers[0], *numbers))  # a server warms up by the first one

    def draw(self, obs, random, how=AS_CONFIGURED):
        return torch.full((len(random), 16, 2), float(next(self.numbers, 0.0)))


def test_a_wrong_unit_or_a_huge_chunk_ends_a_rollout_before_the_next_command(programs, tmp_path):
    """Of a policy here, in either direction, and of one behind a server, which may be of another kind."""
    for package in ("websockets", "msgpack"):  # what dp_prior[serve] installs, without its extension modules
        source = Path(pytest.importorskip(package).__file__).parent
        shutil.copytree(source, programs.place / "installed" / package, ignore=shutil.ignore_patterns("*.so"))
    folders, specs = {}, {}
    for name, high in (("degrees", 100.0), ("radians", 100.0 / 57.3)):
        motion = ActionMotion(
            low=(0, 0), high=(high, high), step=(high, high), answers=(("agent_pos", 0), ("agent_pos", 1)),
            distance=(high / 20, high / 20),
        )  # fmt: skip
        specs[name] = Spec(x_shape=(16, 2), cond_shapes={"agent_pos": (1, 2), "goal": (1, 2)}, motion=motion)
        policy = build(specs[name], n_obs_steps=1, horizon=16)
        draws = high * (0.4 + 0.6 * torch.rand(64, 2))
        policy.normalizer.fit({key: statistics(draws) for key in ("x", "agent_pos", "goal")})
        policy.save_pretrained(tmp_path / name)
        folders[name] = tmp_path / f"{name}_arm"
        export(tmp_path / name, folders[name], *KEYS)
    seen, refuse = ("--policy.state_range=[]", "--robot.ticks=5"), "--policy.actions=refuse"
    first, second, third = (running(Sending(specs["degrees"], 0, 1e6)) for _ in range(3))
    with first as first, second as second, third as third:
        third.stop()  # the folder names a server that is away
        served = []
        for server in (first, second, third):
            where = tmp_path / f"served_{server.port}"
            address = f"127.0.0.1:{server.port}"
            export(tmp_path / "degrees", where, *KEYS, "--address", address)
            served.append((where, f"--policy.address={address}"))
        ended, output = programs.rollouts(
            on_robot(folders["degrees"], "told", *NAMED, *seen),
            on_robot(folders["degrees"], "in_radians", *NAMED, *seen, refuse),
            on_robot(folders["radians"], "in_degrees", *NAMED, *seen, refuse, "--robot.unit=57.3"),
            on_robot(folders["radians"], "rtc", *NAMED, seen[0], refuse, "--robot.unit=57.3", "--inference.type=rtc"),
            on_robot(served[0][0], "huge_told", served[0][1], *NAMED, *seen),
            on_robot(served[1][0], "huge", served[1][1], *NAMED, *seen, refuse),
            on_robot(served[2][0], "none", served[2][1], *NAMED, *seen),
        )
    assert [line.split()[0] for line in ended] == ["ENDED", *["REFUSED"] * 3, "ENDED", *["REFUSED"] * 2], output
    for line in (*ended[1:4], ended[5]):
        assert told(line, "'x.pos'") or told(line, "dimension 0"), line
    commands = {name: (programs.place / name).read_text().count("\n") for name in ("in_radians", "in_degrees", "rtc")}
    assert commands == {"in_radians": 0, "in_degrees": 0, "rtc": 0}, "refused before the first command"
    assert (programs.place / "huge").read_text().count("\n") == 1, "refused before the second command"
    assert output.count("degrees, radians") > 4 and output.count("1e+06") >= 2
    assert told(ended[6], "127.0.0.1", "no answer"), "its server is away"
