"""From recorded depth to a policy that acts: cache, training, resume, ranks, robot, export."""

import json

import numpy as np
import pytest
import torch

from dp_prior import Agent, load_policy
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.recorded.camera import DEPTHS_LOOKED_AT
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.evaluation.blind import blinded
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.pixels.resize import Fit
from dp_prior.tensors.randomness import Randomness
from dp_prior_client.client import PolicyClient
from dp_prior_robot.export.fit_graph import FitGraph
from dp_prior_robot.export.graph_options import GraphOptions
from dp_prior_robot.export.graphs import EncoderGraph
from dp_prior_robot.export.write import observations, write_export
from tests.cases import every
from tests.data.frames.recordings import ends_of, pictures
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.export.policies import SMALL
from tests.plugins.dp_prior_robot.serving.running import running
from tests.tasks.test_policy import statistics
from tests.tiny import assert_equal, experiment, rows, state, tiny, train, train_and_die

LENGTHS = [9, 12, 8, 11]
FRAMES = pictures(sum(LENGTHS))  # (40, 24, 32, 3)
MILLIMETRES = np.random.default_rng(0).integers(0, 3000, (40, 24, 32)).astype(np.uint16)
METRES = torch.from_numpy(MILLIMETRES.astype(np.float32) * np.float32(0.001))[..., None]
SIZE = (12, 16)
RESNET = {
    "type": "resnet",
    "width": 16,
    "blocks": [1],
    "stem": "patch",
    "keypoints": 4,
    "output_dim": 8,
    "crop": [8, 12],
}
BESIDE = {"front": {**RESNET, "jitter": {"brightness": 0.3}, "depth": "front_depth"}}
APART = {"front": RESNET, "front_depth": RESNET}
REGION = [0.25, 0.25, 0.75, 0.75]
DEPTH = {"key": "depth", "size": list(SIZE), "near": 0.2, "far": 2.5, "camera": "front"}
SPEC = Spec(
    x_shape=(8, 2),
    cond_shapes={"front": (2, *SIZE, 3), "front_depth": (2, *SIZE, 1)},
    kinds={"front": "image", "front_depth": "depth"},
    fits={"front": Fit(size=SIZE), "front_depth": Fit(size=SIZE)},
    depths={"front_depth": {"near": 0.2, "far": 2.5, "camera": "front"}},
)


def recorded(place, **depth):
    """`data` of a configuration."""
    place.mkdir(exist_ok=True)
    action = np.arange(40, dtype=np.float32)[:, None]
    np.savez(place / "d.npz", image=FRAMES, depth=MILLIMETRES, action=action, episode_ends=ends_of(LENGTHS))
    return {
        "episodes": {"type": "npz", "path": str(place / "d.npz")},
        "images": {"front": {"key": "image", "size": list(SIZE)}},
        "depth": {"front_depth": {**DEPTH, **depth}},
        "action": {"key": "action"},
        "split": {"train": 0.75, "val": 0.25},
        "batch_size": 8,
    }


def depth_run(place, encoders=BESIDE, **changes):
    data = recorded(place)
    return tiny(
        place, **{"data": data, "task__encoders": json.loads(json.dumps(encoders)), "train__steps": 6, **changes}
    )


def saved(place, encoders=BESIDE, **changes):
    config = depth_run(place, encoders, **changes)
    (place / "config.json").write_text(json.dumps(config))
    return place / "config.json"


def data_of(record):
    return TrajectoriesConfig.from_json(json.dumps(record)).create(4, 2, 2)


def built(encoders, spec=SPEC, **change):
    torch.manual_seed(0)
    policy = PolicyConfig.model_validate({**SMALL, "encoders": encoders, **change}).create(spec)
    policy.normalizer.fit({"x": statistics(100 * torch.rand(64, 2))})
    return policy.eval().requires_grad_(False)


# Data -----------------------------------------------------------------------------------------------------------------


def test_through_the_cache_it_equals_the_arrays_and_resized_their_nearest_pixels(tmp_path):
    for size in ((24, 32), SIZE):
        data = data_of(recorded(tmp_path, size=list(size)))
        expected = Fit(size=size).apply(METRES)
        assert not torch.equal(expected, Fit(size=size, region=REGION).apply(METRES))
        batch = data.train.fetch(torch.arange(len(data.train)))
        now = batch.x[:, 1, 0].long()  # the action is the number of its row
        assert torch.equal(batch.cond["front_depth"][:, 1], expected[now])
        assert data.spec.kinds["front_depth"] == "depth" and data.spec.cond_shapes["front_depth"] == (2, *size, 1)
    assert torch.equal(data_of(recorded(tmp_path, size=[24, 32])).images["front_depth"].rows(torch.arange(40)), METRES)
    assert set(data.statistics()) == {"x"}


def test_a_region_of_colours_and_depth_is_the_same_pixels(tmp_path):
    record = recorded(tmp_path, region=REGION)
    with pytest.raises(
        ConfigError, match=naming("depth.front_depth.region", REGION, "'front'", [0.0, 0.0, 1.0, 1.0], "both")
    ):
        data_of(record)
    record["images"]["front"]["region"] = REGION
    data, plain = data_of(record), Fit(size=SIZE)
    for key, recording in (("front", torch.from_numpy(FRAMES)), ("front_depth", METRES)):
        by_hand = plain.apply(recording[:, 6:18, 8:24].contiguous())
        assert torch.equal(data.images[key].rows(torch.arange(40)), by_hand)
    assert data.spec.fits["front_depth"].region == tuple(REGION)


def test_colours_and_depth_of_one_name_are_refused(tmp_path):
    record = recorded(tmp_path)
    record["depth"] = {"front": {**DEPTH, "camera": None}}
    with pytest.raises(ConfigError, match=naming("front", "twice", "different names")):
        data_of(record)


def test_files_beside_the_data_set_are_the_arrays_too(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="NOT CHECKED: Pillow is not installed")
    record, row = recorded(tmp_path), 0
    for episode, length in enumerate(LENGTHS):
        (tmp_path / "depth" / str(episode)).mkdir(parents=True)
        for step in range(length):
            image.fromarray(MILLIMETRES[row]).save(tmp_path / "depth" / str(episode) / f"{step}.png")
            row += 1
    record["depth"]["front_depth"] = {**DEPTH, "key": None, "folder": str(tmp_path / "depth"), "size": [24, 32]}
    assert torch.equal(data_of(record).images["front_depth"].rows(torch.arange(40)), METRES)


@pytest.mark.parametrize(("field", "changes"), [("unit", True), ("size", True), ("near", False), ("camera", False)])
def test_what_decides_about_its_metres_changes_the_fingerprint(field, changes, tmp_path):
    before = data_of(recorded(tmp_path)).fingerprint
    other = {"unit": 0.002, "size": [10, 16], "near": 0.1, "camera": None}[field]
    assert (data_of(recorded(tmp_path, **{field: other})).fingerprint != before) == changes


def test_a_unit_that_leaves_little_between_near_and_far_is_told(tmp_path):
    assert not any("front_depth" in line for line in data_of(recorded(tmp_path)).warnings())
    (line,) = [line for line in data_of(recorded(tmp_path, unit=1.0)).warnings() if "front_depth" in line]
    assert "2.5" in line and "unit" in line


def test_depth_that_nothing_measured_is_told(tmp_path):
    record = recorded(tmp_path)
    arrays = dict(np.load(tmp_path / "d.npz"))
    np.savez(tmp_path / "d.npz", **{**arrays, "depth": np.zeros_like(MILLIMETRES)})
    (line,) = data_of(record).mixture_warnings()
    assert told(line, "depth.front_depth", f"{min(DEPTHS_LOOKED_AT, len(MILLIMETRES))} frames", "recording")


def test_sets_with_depth_are_mixed_if_their_ranges_agree(tmp_path):
    def mixed(**depth):
        names = ("episodes", "images", "depth", "action")
        sets = {}
        for name, changes in (("a", {}), ("b", depth)):
            record = recorded(tmp_path / name, **changes)
            sets[name] = {key: record[key] for key in names}
        return MixtureConfig.from_json(json.dumps({"sets": sets})).create(4, 2, 2)

    data = mixed(unit=1.0)
    batch = data.train.fetch(torch.arange(len(data.train)))
    assert batch.cond["front_depth"].dtype == torch.float32 and batch.cond["front_depth"].max() > 1000
    assert any(line.startswith("b: depth.front_depth") and "unit" in line for line in data.warnings())
    with pytest.raises(ConfigError, match=naming("'front_depth'", "sets.b", 0.1, "sets.a", 0.2)):
        mixed(near=0.1)
    with pytest.raises(ConfigError, match=naming("'front_depth' of sets.b", "region", REGION, "sets.a")):
        mixed(region=REGION, camera=None)
    with pytest.raises(ConfigError, match=naming("'front_depth'", "sets.b", "sets.a", "camera", "'front'")):
        mixed(camera=None)  # whose random crops would be those of the colours all the same


@pytest.mark.parametrize(
    ("depth", "named"),
    [
        ({"near": 3.0}, ("depth.front_depth", "near", "far", 2.5)),
        ({"camera": "back"}, ("depth.front_depth.camera", "'back'", ["front"])),
        ({"key": "image"}, ("image", "uint8", "data.images")),
        ({"key": "action"}, ("action", "float32", "(40, 1)")),
        ({"folder": "x"}, ("depth.front_depth", "both", '"key"', '"folder"')),
    ],
)
def test_a_wrong_depth_is_refused(depth, named, tmp_path):
    with pytest.raises((ConfigError, DataError), match=naming(*named)):
        data_of(recorded(tmp_path, **depth))


def test_it_reads_in_the_mirror_as_its_camera_does(tmp_path):
    record = recorded(tmp_path, mirror={"flip": "left_right"})
    record["images"]["front"]["mirror"] = {"flip": "left_right"}
    record["mirror"] = {"action": {}}
    data = data_of(record)
    half = len(data.train) // 2
    batch = data.train.fetch(torch.arange(2 * half))
    assert torch.equal(batch.cond["front_depth"][half:], batch.cond["front_depth"][:half].flip(3))
    del record["depth"]["front_depth"]["mirror"]
    with pytest.raises(ConfigError, match=naming("depth.front_depth", '"mirror"')):
        data_of(record)


# Training -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("encoders", [BESIDE, APART], ids=["beside", "apart"])
def test_a_killed_run_goes_on_bit_for_bit(encoders, tmp_path):
    whole = saved(tmp_path / "whole", encoders, train__save_every={"steps": 2})
    assert train(whole).exit_code == 0
    killed = saved(tmp_path / "killed", encoders, train__save_every={"steps": 2})
    assert train_and_die(killed, "step", 3) == -9
    assert train(killed).exit_code == 0
    assert_equal(state(tmp_path / "killed/run"), state(tmp_path / "whole/run"))


def part(text):
    experiment(json.loads(text)).run()


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path, run_ranks):
    experiment(depth_run(tmp_path / "alone")).run()
    both = depth_run(tmp_path / "both")
    both["data"]["batch_size"] = 4
    source = "import json, sys; from tests.test_depth import part; part(json.loads(sys.argv[1]))"
    run_ranks(source, 2, json.dumps(json.dumps(both)))
    for line, other in zip(rows(tmp_path / "both/run"), rows(tmp_path / "alone/run"), strict=True):
        losses = {name: value for name, value in other.items() if "loss" in name}
        assert {name: line[name] for name in losses} == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("encoders", [BESIDE, APART], ids=["beside", "apart"])
def test_it_is_cropped_as_its_camera_is_and_never_jittered(encoders, monkeypatch):
    """Colours and depth are number of row and column: each pair of crops must show the same."""
    policy, seen = built(encoders), []
    places = torch.arange(12 * 16, dtype=torch.float32).view(1, 1, 12, 16, 1).expand(5, 2, -1, -1, -1)
    for encoder in policy.encoder.encoders:
        if hasattr(encoder, "backbone"):
            encoder.backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    colours = places.to(torch.uint8).expand(-1, -1, -1, -1, 3)
    depth = 0.2 + 2.3 * (places + 1) / 200
    random = Randomness.from_counts(0, "test", torch.arange(5))
    policy.encode({"front": colours, "front_depth": depth}, random)
    found = seen[0][:, 3:] if encoders is BESIDE else seen[1]
    crop = policy.encoder.encoders[0].camera.crop
    expected = crop(policy.spec.depths["front_depth"].scaled(depth), random.stream("encoder", "front"))
    torch.testing.assert_close(found, expected.flatten(0, 1).permute(0, 3, 1, 2))
    assert len({one.flatten()[0].item() for one in found[::2]}) > 1, "crops differ between samples"


def test_depth_that_training_drops_reads_as_not_measured():
    policy = built(BESIDE, cond_dropout={"front_depth": 1.0})
    obs, random = observations(policy, 0, 3), Randomness.from_counts(0, "test", torch.arange(3))
    without = {**obs, "front_depth": torch.zeros_like(obs["front_depth"])}
    assert torch.equal(policy.encode(obs, random), policy.encode(without, random))
    assert not torch.equal(policy.encode(obs), policy.encode(without))


@pytest.mark.parametrize(
    ("encoders", "named"),
    [
        ({"front": {**RESNET, "depth": "behind"}}, ("task.encoders.front.depth", "'behind'", ["front_depth"])),
        ({**BESIDE, "front_depth": RESNET}, ("task.encoders.front.depth", "'front_depth'")),
        ({"front_depth": {"type": "state"}}, ("'front_depth'", "'depth'", "state")),
        (
            {"front": RESNET, "front_depth": {**RESNET, "jitter": {}}},
            ("task.encoders.front_depth", "jitter", (12, 16, 1)),
        ),
    ],
)
def test_an_encoder_that_cannot_read_it_is_refused(encoders, named):
    with pytest.raises(ConfigError, match=naming(*named)):
        built(encoders)


def test_depth_of_another_size_is_not_read_beside_colours():
    other = SPEC.model_copy(update={"cond_shapes": {"front": (2, 24, 32, 3), "front_depth": (2, *SIZE, 1)}, "fits": {}})
    with pytest.raises(ConfigError, match=naming("task.encoders.front.depth", SIZE, (24, 32))):
        built(BESIDE, other)


# Acting ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("depth")
    experiment(depth_run(place)).run()
    return load_policy(place / "run")


def test_the_robot_gives_metres_of_any_size_and_not_measured_is_not_finite_either(trained):
    """Bit for bit what the cache held."""
    small = {"front": Fit(size=SIZE).apply(torch.from_numpy(FRAMES)), "front_depth": Fit(size=SIZE).apply(METRES)}
    agents = [Agent(trained) for _ in range(3)]
    for number in range(4):
        depth = METRES[number].numpy()
        odd = np.where(depth == 0, [np.nan, np.inf, -1][number % 3], depth).astype(np.float64)
        found = [
            agents[0].act({key: value[number].numpy() for key, value in small.items()}),
            agents[1].act({"front": FRAMES[number], "front_depth": depth}),
            agents[2].act({"front": FRAMES[number], "front_depth": odd}),
        ]
        assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_a_server_acts_alike(trained):
    pytest.importorskip("msgpack", reason="msgpack is not installed: depth is NOT served")
    agent = Agent(trained)
    with running(trained) as server, PolicyClient(port=server.port) as robot:
        for number in range(4):
            obs = {"front": FRAMES[number], "front_depth": METRES[number].numpy()}
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))
        with pytest.raises(ValueError, match=naming("'front_depth'", "uint16", "depth * 0.001")):
            robot.act({"front": FRAMES[0], "front_depth": MILLIMETRES[0][..., None]})
        told = robot.metadata["obs"]["front_depth"]
        assert (told["kind"], told["dtype"], told["shape"]) == ("depth", "float32", [None, None, 1])


@pytest.mark.parametrize(
    ("depth", "named"),
    [
        (MILLIMETRES[0][..., None], ("'front_depth'", "uint16", "float32", "depth * 0.001")),
        (
            torch.from_numpy(MILLIMETRES[0].astype(np.int32))[..., None],
            ("'front_depth'", "torch.int32", "depth * 0.001"),
        ),
        (METRES[0, ..., 0].numpy(), ("'front_depth'", "(24, 32)", "depth[..., None]")),
        (FRAMES[0].astype(np.float32), ("'front_depth'", "(24, 32, 3)")),
    ],
)
def test_depth_in_other_units_or_shapes_is_refused(depth, named, trained):
    with pytest.raises(ValueError, match=naming(*named)):
        Agent(trained).act({"front": FRAMES[0], "front_depth": depth})


def test_blinded_it_was_not_measured(trained):
    obs = blinded({"front": FRAMES[:2], "front_depth": METRES[:2].numpy()}, trained, ["front_depth"])
    assert not obs["front_depth"].any() and obs["front"] is not None


@every(how=("resize", "crop", "letterbox"), region=(None, (0.25, 0.1, 1.0, 0.75)), turn=(None, "left", "half"))
def test_the_graph_of_an_export_takes_frames_of_the_robot(how, region, turn):
    fits = dict.fromkeys(SPEC.fits, Fit(size=SIZE, how=how, region=region, turn=turn))
    policy = built(BESIDE, SPEC.model_copy(update={"fits": fits}))
    frames = {"front_depth": (30, 41)}
    obs = observations(policy, 0, 2, frames)
    fit = policy.spec.fits["front_depth"]
    fitted = fit.apply(obs["front_depth"].flatten(0, 1)).unflatten(0, (2, 2))
    assert torch.equal(FitGraph(fit, frames["front_depth"], is_depth=True)(obs["front_depth"]), fitted)
    found, expected = EncoderGraph(policy, frames)(obs), EncoderGraph(policy)({**obs, "front_depth": fitted})
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("encoders", [BESIDE, APART], ids=["beside", "apart"])
def test_an_export_acts_alike(encoders, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: depth in ONNX is NOT tested")
    report = write_export(
        built(encoders), tmp_path / "out", "onnx", source="run", options=GraphOptions(frames={"front_depth": (48, 64)})
    )
    assert report["largest_error"] < 1e-4
