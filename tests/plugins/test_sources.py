"""Where the policy of a folder comes from, on stand-ins for LeRobot: the Hub, an export, a server; and instructions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior.data.embeddings.written import EmbeddingsRecord
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.inference.agent import Agent
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec
from dp_prior_client.onboard.action_limits import RefusedActionError
from dp_prior_client.onboard.frame_watch import UNWATCHED, FrameLimits
from dp_prior_foreign.writers.embeddings_writer import Job, write_embeddings
from dp_prior_robot.export.exported_agent import ExportAgent
from dp_prior_robot.export.exported_policy import OnnxPolicy
from tests.messages import naming
from tests.plugins.dp_prior_robot.export.policies import ByTorch, build
from tests.plugins.dp_prior_robot.serving.running import running
from tests.plugins.standin import RTCConfig, plugin  # noqa: F401 (a fixture)

MODEL = HashedConfig(dimension=8)
SPEC = Spec(x_shape=(8, 2), cond_shapes={"pos": (1, 3)})
TOLD = Spec(
    x_shape=(8, 2), cond_shapes={"pos": (1, 3), "order": (1, 8)}, kinds={"order": "text"}, embedders={"order": MODEL}
)
KEYS = {"pos": "observation.state", "order": "task"}
STATE = torch.tensor([[20.0, 40.0, 60.0]])
OBS = {"pos": STATE[0].numpy()}
TOKEN = "k" * 16


@pytest.fixture
def opened(plugin):  # noqa: F811
    """Opens a place for LeRobot, with settings of config.json and of its options."""

    def open_place(place, keys=("pos",), **settings):
        known = {"n_obs_steps": 1, "input_features": {"observation.state": SimpleNamespace(shape=(3,))}}
        config = plugin("configuration_dp_prior").DPPriorConfig(
            **known, keys={key: KEYS[key] for key in keys}, **settings
        )
        return plugin("modeling_dp_prior").DPPriorPolicy.from_pretrained(place, config=config)

    return open_place


def folder(place, policy):
    policy.save_pretrained(place / "policy")
    return place


def acts_as(theirs, ours, obs=OBS, **told):
    theirs.reset()
    ours.reset(0)
    return np.array_equal(theirs.select_action({"observation.state": STATE, **told})[0], ours.act(obs))


def test_a_repository_of_the_hub_acts_as_the_folder(opened, tmp_path, hub):
    policy = build(SPEC, n_obs_steps=1)
    files = {f"policy/{path.name}": path.read_bytes() for path in (folder(tmp_path, policy) / "policy").iterdir()}
    hub.create("me/arm", files={"config.json": b"{}", **files})
    assert acts_as(opened("me/arm"), Agent(policy))


def test_a_task_is_the_instruction_and_a_folder_of_texts_bounds_it(opened, tmp_path):
    policy, values = build(TOLD, n_obs_steps=1), MODEL.create().texts(["go left"])
    texts = EmbeddingsRecord(embedder=MODEL, source={"texts": "text"}, rows=1)
    write_embeddings(tmp_path / "texts", Job(texts, {"text": ["go left"]}, lambda first, stop: values[first:stop]))
    place, both = folder(tmp_path, policy), ("pos", "order")
    for task in ("go left", ["go left"]):  # of sync, of rtc
        assert acts_as(opened(place, both), Agent(policy), {**OBS, "order": "go left"}, task=task)
    chunk = opened(place, both).predict_action_chunk({"observation.state": STATE, "task": ["go left"]})[0]
    ours = Agent(policy)
    assert np.array_equal(chunk, ours.infer({"pos": OBS["pos"][None], "order": "go left"})["chunk"])
    theirs = opened(place, both, texts=str(tmp_path / "texts"))
    assert acts_as(theirs, Agent(policy), {**OBS, "order": "go left"}, task="go left")
    with pytest.raises(ValueError, match=naming("go right")):
        theirs.reset()
        theirs.select_action({"observation.state": STATE, "task": "go right"})
    for task in ("", [""]):
        with pytest.raises(ValueError, match=naming("instruction", "'order'", "--task")):
            opened(place, both).select_action({"observation.state": STATE, "task": task})


def test_an_export_acts_and_jumps_to_each_chunk_of_rtc(opened, tmp_path, monkeypatch):
    policy = build(SPEC, n_obs_steps=1)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "policy.json").touch()
    monkeypatch.setattr(OnnxPolicy, "load", lambda place: ByTorch.of(policy))
    ours = ExportAgent(ByTorch.of(policy))
    assert acts_as(opened(tmp_path, merge="naive"), ours)
    theirs = opened(tmp_path, merge="naive", rtc_config=RTCConfig())
    assert theirs.supports_rtc()
    theirs.init_rtc_processor()
    for given in ({}, {"inference_delay": 2, "prev_chunk_left_over": torch.ones(10, 2)}):
        theirs.reset()
        ours.reset(theirs._episode)
        chunk = theirs.predict_action_chunk({"observation.state": STATE}, **given)[0]
        assert np.array_equal(chunk, ours.infer({"pos": OBS["pos"][None]})["chunk"])
    with pytest.raises(ValueError, match=naming("--policy.merge", "guided", "naive")):
        opened(tmp_path, merge="guided", rtc_config=RTCConfig()).init_rtc_processor()


def test_a_server_is_shown_the_key_of_the_token_file(opened, tmp_path):
    pytest.importorskip("websockets", reason="websockets is not installed: a server as the policy is NOT tested")
    policy, key = build(SPEC, n_obs_steps=1), tmp_path / "key"
    key.write_text(f"{TOKEN}\n")
    with running(policy, token=TOKEN) as server:
        address = f"127.0.0.1:{server.port}"
        theirs = opened(tmp_path, address=address, token_file=str(key))
        assert acts_as(theirs, Agent(policy))
        with pytest.raises(ConnectionError, match=naming("Authorization")):
            opened(tmp_path, address=address)
        theirs._source._client.close()


def test_an_observation_beyond_the_limit_is_refused_wherever_the_policy_runs(opened, tmp_path, monkeypatch):
    policy, strange = build(SPEC, n_obs_steps=1), {"observation.state": STATE + 1e6}
    with pytest.raises(ValueError, match=naming("refuse", 0.5)):
        opened(folder(tmp_path, policy), ranges_refuse=0.5)
    theirs = opened(tmp_path, ranges_refuse=3.0)
    for rows in (1, 2):
        theirs.reset()
        with pytest.raises(ValueError, match=naming("'pos'", "3 (ranges.refuse)")):
            theirs.select_action({"observation.state": strange["observation.state"].expand(rows, -1)})
    pytest.importorskip("websockets", reason="websockets is not installed: a server as the policy is NOT tested")
    with running(policy) as server:
        theirs = opened(tmp_path, address=f"127.0.0.1:{server.port}", ranges_refuse=3.0)
        with pytest.raises(ValueError, match=naming("'pos'", "3 (ranges.refuse)")):
            theirs.select_action(strange)
        theirs._source._client.close()
    (tmp_path / "policy" / "policy.json").touch()
    monkeypatch.setattr(OnnxPolicy, "load", lambda place: ByTorch.of(policy))
    with pytest.raises(ValueError, match=naming("'pos'", "3 (ranges.refuse)")):
        opened(tmp_path, merge="naive", ranges_refuse=3.0).select_action(strange)


def test_a_dry_run_commands_where_the_joints_stand_and_is_logged_wherever_the_policy_runs(
    opened, tmp_path, monkeypatch
):
    far = (1e6, 1e6)
    motion = ActionMotion(low=far, high=far, step=far, answers=(("pos", 1), None), distance=far)
    policy = build(SPEC.model_copy(update={"motion": motion}), n_obs_steps=1)
    folder(tmp_path, policy)
    dry = {"dry_run": True, "dry_run_still": {"1": 0.25}, "log": str(tmp_path / "ticks")}
    stay = np.float32([[STATE[0, 1], 0.25]])

    def check(theirs):
        theirs.reset()
        for _ in range(3):
            np.testing.assert_array_equal(theirs.select_action({"observation.state": STATE}), stay)

    with pytest.raises(ValueError, match=naming("['1']")):
        opened(tmp_path, dry_run=True)
    theirs = opened(tmp_path, **dry)
    check(theirs)
    with pytest.raises(ValueError, match=naming("--policy.dry_run", "--eval.batch_size=1")):
        theirs.select_action({"observation.state": STATE.expand(2, -1)})
    pytest.importorskip("websockets", reason="websockets is not installed: a server as the policy is NOT tested")
    with running(policy) as server:
        theirs = opened(tmp_path, address=f"127.0.0.1:{server.port}", **dry)
        check(theirs)
        theirs._source._client.close()
    (tmp_path / "policy" / "policy.json").touch()
    monkeypatch.setattr(OnnxPolicy, "load", lambda place: ByTorch.of(policy))
    check(opened(tmp_path, merge="naive", **dry))


@pytest.mark.parametrize("n_action_steps", [-1, 0, 9])
def test_actions_that_a_chunk_does_not_have_are_refused_wherever_the_policy_runs(opened, tmp_path, n_action_steps):
    policy = build(SPEC, n_obs_steps=1)
    with pytest.raises(ValueError, match=naming("n_action_steps", n_action_steps, "1 to 8")):
        opened(folder(tmp_path, policy), n_action_steps=n_action_steps)
    pytest.importorskip("websockets", reason="websockets is not installed: a server as the policy is NOT tested")
    option = "--policy.n_action_steps"
    with running(policy) as server, pytest.raises(ValueError, match=naming(option, n_action_steps, "1 to 8")):
        opened(tmp_path, address=f"127.0.0.1:{server.port}", n_action_steps=n_action_steps)


@pytest.mark.parametrize("address", ["box", ":8000", "box:http"])
def test_an_address_without_a_port_is_refused(opened, tmp_path, address):
    with pytest.raises(ValueError, match=naming("--policy.address", repr(address), "HOST:PORT")):
        opened(tmp_path, address=address)


def test_what_this_version_cannot_read_is_refused(opened, tmp_path):
    with pytest.raises(ValueError, match=naming("layout 3", "up to 2", "pip install -U lerobot_policy_dp_prior")):
        opened(tmp_path, layout=3)
    with pytest.raises(ValueError, match=naming("--policy.merge", "blended", "naive, guided, prefix")):
        opened(tmp_path, merge="blended")
    with pytest.raises(FileNotFoundError, match=naming(tmp_path, "dp-prior export", "--policy.address")):
        opened(tmp_path)


def test_an_action_beyond_the_limit_is_refused_wherever_the_policy_runs(opened, tmp_path, monkeypatch):
    motion = ActionMotion(
        low=(0, 0), high=(100, 100), step=(100, 100), answers=(("pos", 0), ("pos", 1)), distance=(1, 1)
    )  # fmt: skip
    policy, refuse = build(SPEC.model_copy(update={"motion": motion}), n_obs_steps=1), {"actions": "refuse"}
    far = {"observation.state": torch.tensor([[-90.0, 190.0, 60.0]])}
    with pytest.raises(ValueError, match=naming("--policy.actions", "'stop'", "clip")):
        opened(folder(tmp_path, policy), actions="stop")
    refused = pytest.raises(RefusedActionError, match=naming("'pos'", "at most 1", "actions.beyond"))
    with refused:
        opened(tmp_path, **refuse).select_action(far)
    opened(tmp_path).select_action(far)
    opened(tmp_path, actions_factor=1e3, **refuse).select_action(far)
    opened(tmp_path, **refuse).select_action({"observation.state": far["observation.state"].expand(2, -1)})
    pytest.importorskip("websockets", reason="websockets is not installed: a server as the policy is NOT tested")
    with running(policy) as server:
        theirs = opened(tmp_path, address=f"127.0.0.1:{server.port}", **refuse)
        with refused:
            theirs.select_action(far)
        theirs._source._client.close()
    (tmp_path / "policy" / "policy.json").touch()
    monkeypatch.setattr(OnnxPolicy, "load", lambda place: ByTorch.of(policy))
    with refused:
        opened(tmp_path, merge="naive", **refuse).select_action(far)


def test_the_options_of_frames_are_the_limits_of_the_agent(plugin, opened, tmp_path):  # noqa: F811
    config = plugin("configuration_dp_prior").DPPriorConfig
    assert config(frame_s=0.5).frame_limits == FrameLimits(0.5)
    assert config(frames="refuse").frame_limits == FrameLimits(1.0, "refuse", "refuse")
    assert config(frames="ignore").frame_limits == UNWATCHED
    with pytest.raises(ValueError, match=naming("frozen", "'halt'", '"refuse"')):
        opened(folder(tmp_path, build(SPEC, n_obs_steps=1)), frames="halt")
