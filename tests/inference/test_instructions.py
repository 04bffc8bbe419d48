"""Texts at acting time become the embeddings of training, by their model or from a folder, and nothing else."""

import json

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.embeddings.written import EmbeddingsRecord
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.embedders.transformers import TransformersConfig
from dp_prior.inference.agent import Agent
from dp_prior.inference.instructions import Instructions
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tensors.batch import Spec
from dp_prior_foreign.writers.embeddings_writer import Job, write_embeddings
from tests.inference.fake_policies import Fake
from tests.messages import naming, told

MODEL = HashedConfig(dimension=8)
EMBED = MODEL.create().texts


class Told(Fake):
    """Observation `b` is an instruction."""

    def __init__(self, embedder=MODEL, dimension=8, **sizes):
        super().__init__(**sizes)
        shapes = {"a": (self.n_obs_steps, 3), "b": (self.n_obs_steps, dimension)}
        embedders = {} if embedder is None else {"b": embedder}
        self.spec = Spec(x_shape=(8, 2), cond_shapes=shapes, kinds={"b": "text"}, embedders=embedders)


def seen(policy):
    return policy.calls[-1][0]["b"]


def folder(place, texts, embedder=MODEL):
    values = EMBED(texts)
    record = EmbeddingsRecord(embedder=embedder, source={"texts": "text"}, rows=len(texts))
    write_embeddings(place, Job(record, {"text": texts}, lambda first, stop: values[first:stop]))
    return place


def test_a_text_acts_as_its_embedding_for_every_way_of_asking():
    for value in ("go left", EMBED(["go left"])[0], EMBED(["go left"])[0].tolist()):
        policy = Told()
        action = Agent(policy).act({"a": np.zeros(3), "b": value})
        assert torch.equal(seen(policy), torch.from_numpy(EMBED(["go left", "go left"]))[None])
        np.testing.assert_array_equal(action, Agent(Told()).act({"a": np.zeros(3), "b": EMBED(["go left"])[0]}))
    two = EMBED(["go left", "stop"])
    for value in ("go left", ["go left", "go left"], np.array(["go left"] * 2), two[[0, 0]]):
        policy = Told()
        Agent(policy).infer({"a": np.zeros((2, 3)), "b": value})
        assert torch.equal(seen(policy), torch.from_numpy(two[[0, 0]])[None])
    policy = Told()
    Agent(policy).infer({"a": np.zeros((2, 3)), "b": ["go left", "stop"]})
    assert torch.equal(seen(policy), torch.from_numpy(two)[None])
    policy = Told()
    agent = VectorAgent(policy)
    agent.reset([0, 1])
    agent.act({"a": np.zeros((2, 3)), "b": np.array(["go left", "stop"])})
    assert torch.equal(seen(policy)[:, 1], torch.from_numpy(two))


def test_history_keeps_what_was_said_at_each_step():
    policy = Told()
    agent = Agent(policy, n_action_steps=1)
    agent.act({"a": np.zeros(3), "b": "go left"})
    agent.act({"a": np.zeros(3), "b": "stop"})
    assert torch.equal(seen(policy), torch.from_numpy(EMBED(["go left", "stop"]))[None])


def test_a_folder_of_embeddings_needs_no_model(tmp_path):
    model = TransformersConfig(model="not/there", sha256="0" * 64)
    known = Instructions(Told(model).spec, folder(tmp_path / "e", ["go left", "stop"], model))
    policy = Told(model)
    Agent(policy, instructions=known).act({"a": np.zeros(3), "b": "stop"})
    assert torch.equal(seen(policy)[0, 0], torch.from_numpy(EMBED(["stop"])[0]))
    with pytest.raises(ValueError, match=naming("'go lefT'", "'go left'")):
        Agent(policy, instructions=known).act({"a": np.zeros(3), "b": "go lefT"})


def test_embeddings_of_another_model_are_refused(tmp_path):
    other = folder(tmp_path / "e", ["stop"], HashedConfig(dimension=16))
    for policy in (Told(), Told(None)):
        with pytest.raises(ValueError, match=naming("hashed:16", "'b'")):
            Instructions(policy.spec, other)
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "gone")):
        Instructions(Told().spec, tmp_path / "gone")


def test_a_folder_from_which_nothing_would_be_read_is_refused(tmp_path):
    frames = EmbeddingsRecord(embedder=MODEL, source={"frames": "front"}, rows=1)
    write_embeddings(tmp_path / "frames", Job(frames, {"episode": [0]}, lambda first, stop: EMBED(["a frame"])))
    (tmp_path / "empty").mkdir()
    unread = Spec(x_shape=(8, 2), cond_shapes={"a": (2, 3)})
    for spec, place, *parts in (
        (Told().spec, "frames", "frames", "texts"),
        (Told().spec, "empty", "dp-prior embed"),
        (Told(None).spec, "empty", "dp-prior embed"),
        (unread, "empty", "instructions"),
    ):
        with pytest.raises(ValueError, match=naming(tmp_path / place, *parts)):
            Instructions(spec, tmp_path / place)
    elsewhere = Instructions(Told(TransformersConfig(model="not/there", sha256="0" * 64)).spec, tmp_path / "empty")
    with pytest.raises(ValueError, match=naming(tmp_path / "empty", "SHA-256")):  # the model is looked for there
        elsewhere.embedded({"b": np.array("stop")})


def test_a_server_is_refused_embeddings_of_another_model(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from dp_prior.cli import main

    monkeypatch.setattr("dp_prior_robot.candidate.resolve", lambda reference: tmp_path)
    monkeypatch.setattr("dp_prior_robot.candidate.load_policy", lambda *reference, **how: Told())
    texts = folder(tmp_path / "e", ["stop"], HashedConfig(dimension=16))
    done = CliRunner().invoke(main, ["serve", "run", "--port", "0", "--texts", str(texts)])
    assert done.exit_code == 64 and told(done.output, "--texts", "hashed:16")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", ("'b'", "empty text", "embedding")),
        ("  \n", ("'b'", "empty text", "embedding")),
        ("x" * 5000, ("'b'", "5000 characters", 4096)),
        ("?", ("'?'",)),
    ],
)
def test_odd_texts_are_one_line_and_are_not_remembered(value, message):
    policy = Told()
    agent = Agent(policy)
    with pytest.raises(ValueError, match=naming(*message)):
        agent.act({"a": np.zeros(3), "b": value})
    agent.act({"a": np.zeros(3), "b": "stop"})
    assert torch.equal(seen(policy), torch.from_numpy(EMBED(["stop", "stop"]))[None])


def test_what_nobody_can_embed_and_what_is_missing_is_named():
    with pytest.raises(ValueError, match=naming("'b'", "dp-prior embed", "(8,)")):
        Agent(Told(None)).act({"a": np.zeros(3), "b": "stop"})
    Agent(Told(None)).act({"a": np.zeros(3), "b": np.ones(8)})
    with pytest.raises(ValueError, match=naming("'b'", "a (3,)", "b (8,)")):
        Agent(Told()).act({"a": np.zeros(3)})
    with pytest.raises(ValueError, match=naming("'b'", "'gone'", "user/name")):
        Agent(Told(TransformersConfig(model="gone"))).act({"a": np.zeros(3), "b": "stop"})
    with pytest.raises(ValueError, match=naming("'b'", "(3,)", "(8,)")):
        Agent(Told()).act({"a": np.zeros(3), "b": np.ones(3)})
    with pytest.raises(ValueError, match=naming("'a'", "<U4")):
        Agent(Told()).act({"a": "stop", "b": "stop"})


@pytest.mark.slow
def test_the_model_may_lie_elsewhere_on_the_robot(tmp_path):
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    from tests.embedders.models import save_model

    trained = TransformersConfig(model=str(save_model(tmp_path / "there", "clip"))).resolve()
    (tmp_path / "there").rename(tmp_path / "here")
    policy = Told(trained, dimension=6)
    Agent(policy, instructions=Instructions(policy.spec, tmp_path / "here")).act({"a": np.zeros(3), "b": "push left"})
    expected = TransformersConfig(model=str(tmp_path / "here")).create().texts(["push left"])[0]
    np.testing.assert_allclose(seen(policy)[0, 0], expected, atol=1e-6)


def test_a_spec_keeps_its_models_and_only_for_texts():
    spec = Told().spec
    assert Spec.from_json(spec.model_dump_json()) == spec
    plain = Spec(x_shape=(8, 2), cond_shapes={"a": (2, 3)})
    assert json.loads(plain.model_dump_json()) == {"x_shape": [8, 2], "cond_shapes": {"a": [2, 3]}}
    with pytest.raises(ConfigError, match=naming("['a']", "'text'")):
        Spec.from_json('{"x_shape": [8, 2], "cond_shapes": {"a": [2, 3]}, "embedders": {"a": {"type": "hashed"}}}')


def test_a_server_and_its_client_pass_texts_on():
    pytest.importorskip("websockets", reason="websockets is not installed: the policy server is NOT tested")
    pytest.importorskip("msgpack", reason="msgpack is not installed: the policy server is NOT tested")
    from dp_prior_client import PolicyClient, ServerError
    from dp_prior_client.realtime import RealtimeAgent
    from dp_prior_client.wire import pack, unpack
    from dp_prior_robot.serving.session import Session
    from tests.plugins.dp_prior_robot.serving.running import running

    told = [{"a": np.full(3, i, float), "b": "go left" if i < 5 else "stop"} for i in range(12)]
    agent, policy = Agent(Told()), Told()
    with running(policy) as server, PolicyClient(port=server.port) as robot:
        assert robot.metadata["obs"]["b"] == {"shape": [8], "dtype": "float32", "kind": "text"}
        for obs in told:
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))
        robot.reset()
        with pytest.raises(ServerError, match=naming("'b'", "empty text")):
            robot.act({"a": np.zeros(3), "b": ""})
        robot.reset()
        with RealtimeAgent(robot, fps=10, n_obs_steps=2, n_action_steps=4) as realtime:
            realtime.act(told[0])
        assert torch.equal(seen(policy), torch.from_numpy(EMBED(["go left"] * 2))[None])
    agent.reset(0)
    session, stock = Session(Told(), history="server"), Session(Told())
    for obs in told:  # as a stock client asks: one observation, at every step
        np.testing.assert_array_equal(unpack(session.answer(pack(obs)).reply)["actions"][0], agent.act(obs))
    found = unpack(stock.answer(pack(told[0])).reply)
    np.testing.assert_array_equal(found["actions"][0], Agent(Told()).act(told[0]))


OBS = {"a": np.zeros(3), "b": "push left"}


@pytest.mark.promise("K16")
def test_no_policy_makes_the_machine_download_a_model(tmp_path, hub):
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    from tests.embedders.models import save_model

    model = save_model(tmp_path / "there", "clip")
    hub.create("their/model", files={path.name: path.read_bytes() for path in model.iterdir()})
    record = TransformersConfig(model="their/model", sha256=TransformersConfig(model=str(model)).resolve().sha256)
    policy = Told(record, dimension=6)
    with pytest.raises(ValueError, match=naming("their/model", "hf download")):
        Agent(policy).act(OBS)
    with pytest.raises(FileNotFoundError, match=naming("hf download", "their/model")):
        Instructions(policy.spec).check_located()
    assert hub.requests == []
    assert record.resolve() == record  # the user downloads, as `dp-prior embed` does
    assert (downloads := len(hub.requests)) > 0
    Agent(policy).act(OBS)
    np.testing.assert_allclose(seen(policy)[0, 0], record.create().texts(["push left"])[0], atol=1e-6)
    assert not [
        request for request in hub.requests[downloads:] if request.kind == "resolve" and request.method == "GET"
    ]


@pytest.mark.promise("K16")
def test_a_policy_names_no_folder_whose_content_its_maker_did_not_know(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(TransformersConfig, "create", lambda record: loaded.append(record.model))
    (tmp_path / "private").mkdir()
    policy = Told(TransformersConfig(model=str(tmp_path / "private")), dimension=6)
    with pytest.raises(ValueError, match=naming(str(tmp_path / "private"))):
        Agent(policy).act(OBS)
    assert loaded == []


def test_what_needs_no_model_is_located(tmp_path):
    Instructions(Told().spec).check_located()
    Instructions(Told(TransformersConfig(model="gone")).spec, tmp_path).check_located()  # the user names the folder
    Instructions(Told(None).spec).check_located()
