"""Every configuration of the repository has its two pages: of the data that it names, and of the run that it makes.

Data, networks and evaluations are cut down; tasks, formats, parts and evaluators are those of the file.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.run.config import TrainConfig
from dp_prior.run.descriptions import truly_described
from dp_prior_worlds.goal_choice import instruction_rows
from dp_prior_worlds.renderers.metaworld import SCENE
from tests.data.pictures import sets
from tests.plugins.dp_prior_studio.pages.test_report import Outline
from tests.plugins.dp_prior_worlds.libero_recording import write_suite
from tests.plugins.dp_prior_worlds.robomimic_recording import TASKS, write_robomimic
from tests.test_recipes import lerobot_pusht, replay_buffer
from tests.tiny import train

ROOT = Path(__file__).parents[4]
CONFIGS = sorted((ROOT / "configs").glob("*/*.json"))
NEEDS = {
    "pusht": "gym_pusht",
    "metaworld": "metaworld",
    "aloha": "gym_aloha",
    "robosuite": "robosuite",
    "libero": "h5py",
    "robomimic": "h5py",
    "image": "diffusers",
    "three_bodies": "metaworld gym_aloha robosuite",
}  # beginnings of names -> packages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "demonstrations/pusht.npz").exists(), reason="demonstrations/pusht.npz is missing"),
]


def run(*arguments):
    return succeeded(CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False))


def succeeded(result):
    """The output of a command."""
    if "cannot render" in result.output:
        pytest.skip("NOT CHECKED: MuJoCo cannot render here; set MUJOCO_GL to egl or osmesa")
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with everything that the configurations name, small."""
    root = tmp_path_factory.mktemp("everything")
    for folder in (
        "demonstrations",
        "data/clip",
        "data/cifar10",
        "runs/metaworld",
        "runs/aloha",
        "runs/robosuite",
        "runs/bodies",
    ):
        (root / folder).mkdir(parents=True)
    with np.load(ROOT / "demonstrations/pusht.npz") as found:
        ends = found["episode_ends"][:10]
        few = {name: values[: ends[-1]] for name, values in found.items() if name != "episode_ends"}
    np.savez(root / "demonstrations/pusht.npz", **few, episode_ends=ends)
    rng = np.random.default_rng(0)
    replay_buffer(root / "data/pusht_cchi_v7_replay.zarr", 100)
    lerobot_pusht(root / "data/lerobot_pusht")
    states, lengths = rng.normal(size=(300, 39)).astype(np.float32), np.arange(30, 301, 30)
    moves = {"state": states, "action": np.tanh(states[:, :4]), "episode_ends": lengths}
    np.savez(root / "runs/metaworld/push-v3.npz", **moves)
    texts = ["reach the goal", "push the puck to the goal"]
    scenes = np.zeros((300, SCENE), np.float32)
    for tasks in ("MT10", "MT50"):
        words = instruction_rows("task", [0, 1] * 5, [30] * 10, texts)
        np.savez(root / f"runs/metaworld/{tasks}.npz", **moves, **words, scene=scenes)
    np.savez(root / "runs/bodies/metaworld.npz", **moves, **words)
    arm = {"action": np.tanh(states[:, :7]), "executed": np.tanh(states[:, :7]), "seed": np.arange(10)}
    for name, size, quaternions in (("can", 23, (3, 10, 17)), ("square_300", 23, (3, 10, 17)), ("lift", 19, (3, 13))):
        poses = states[:, :size].copy()
        for begin in quaternions:
            poses[:, begin : begin + 4] = (0.0, 0.0, 0.0, 1.0)
        folder = "bodies" if name == "lift" else "robosuite"
        np.savez(root / f"runs/{folder}/{name}.npz", state=poses, **arm, episode_ends=lengths)
    for task, size in (("transfer_cube", 33), ("insertion", 49)):
        arms = np.tanh(rng.normal(size=(300, size))).astype(np.float32)
        joints = {"state": arms, "action": arms[:, :14], "executed": arms[:, :14]}
        for name in (f"aloha/{task}", f"aloha/{task}_50", f"bodies/{task}"):
            np.savez(root / f"runs/{name}.npz", **joints, seed=np.arange(10), episode_ends=lengths)
    pixels, labels = sets.images(400, (32, 32))
    sets.write_folder(root / "data/cifar_train", pixels, labels, "prefix")
    for name in ("train", "test"):
        sets.write_npz(root / f"data/cifar10/{name}.npz", pixels, labels)
    for kind in ("image", "text"):
        np.save(root / f"data/clip/{kind}_embeddings.npy", rng.normal(size=(60, 512)).astype(np.float32))
    if importlib.util.find_spec("h5py"):
        for suite in ("spatial", "object", "goal", "10"):
            turn_less(write_suite(root / f"data/libero/libero_{suite}"))
        for task in TASKS:
            folder = root / f"data/robomimic/datasets/{task}/ph"
            write_robomimic(folder / "low_dim_abs.hdf5", task, poses="actions")
            write_robomimic(folder / "image_abs.hdf5", task, poses="actions", pictures=True, steps=12)
    rows = "".join(f"{row // 5}\n" for row in range(60))
    (root / "data/clip/metadata.csv").write_text(f"image_id\n{rows}", encoding="utf-8")
    return root


def turn_less(suite):
    """Make the numbers of the hands' poses small enough for angles."""
    import h5py

    for path in suite.iterdir():
        with h5py.File(path, "r+") as file:
            for demonstration in file["data"].values():
                demonstration["obs/ee_states"][:] *= 1e-3


def cut_down(path):
    """The configuration with a small network, three steps, and evaluators of the size that `--check` gives them; of
    LIBERO, whose simulator needs a Python of its own, and robomimic, whose recorded states are of no simulator here,
    without those that play."""
    config = TrainConfig.from_json_path(path)
    found = config.model_dump(mode="json")
    is_played = not path.stem.startswith(("libero", "robomimic"))
    for name in ("evaluate", "test"):
        evaluators = [one.trial() for one in getattr(config, name) if is_played or not hasattr(one, "env")]
        found[name] = [one.model_dump(mode="json") for one in evaluators]
    if not is_played:
        found["train"]["monitor"] = {"metric": "validation/ema/loss"}
        found["data"]["split"] = {"train": 0.5, "val": 0.5}
    for one in found["evaluate"]:
        one["every"] = {"steps": 2}
    backbone, train = found["task"]["backbone"], found["train"]
    for name, value in (("down_dims", [16, 32, 64]), ("channels", 8), ("n_groups", 4), ("head_dim", 8)):
        if name in backbone:
            backbone[name] = value
    found["task"]["sampler"]["steps"] = min(4, found["task"]["sampler"]["steps"])
    batch = 4 if is_played else 2
    found["data"] |= {"batch_size": batch, "global_batch_size": batch}
    train |= {"samples": None, "epochs": None, "steps": 3, "log_every": {"steps": 1}, "save_every": {"steps": 2}}
    train["lr"]["warmup_steps"] = 1
    return found


def prepare(name, config):
    """Run the commands that the description of a configuration gives, and the run that it begins with."""
    out = Path("demonstrations")
    if name == "pusht_embeddings" and not (out / "pusht_embeddings").exists():
        run("make-demonstrations", "--change", "embed", "--from", out / "pusht.npz", "--out", out / "pusht_embeddings")
    if name.startswith("pusht_goals") and not (out / "pusht_goals.npz").exists():
        run("make-demonstrations", "--change", "goals", "--from", out / "pusht.npz", "--out", out / "pusht_goals.npz")
        texts = ("--key", "instruction", "--out", out / "pusht_goals_texts")
        run("embed", "--model", "hashed", "--config_file", config, *texts)
    if name.startswith("libero"):
        texts = ("--key", "instruction", "--out", f"runs/libero/{name.removeprefix('libero_')}_texts")
        run("embed", "--model", "hashed", "--config_file", config, *texts)
    if name.startswith("metaworld_mt"):
        texts = ("--key", "instruction", "--out", f"runs/metaworld/{name.split('_')[1].upper()}_texts")
        run("embed", "--model", "hashed", "--config_file", config, *texts)
    if name == "three_bodies":
        run("embed", "--model", "hashed", "--config_file", config, "--key", "instruction", "--out", "runs/bodies/texts")
    if name == "pusht_human_aligned" and not Path("data/pusht_aligned.npz").exists():
        run("convert", "data/pusht_cchi_v7_replay.zarr", "data/pusht_human.npz", "--to", "npz", "--leave-out", "img")
        run(
            "make-demonstrations",
            "--change",
            "align",
            "--from",
            "data/pusht_human.npz",
            "--out",
            "data/pusht_aligned.npz",
        )
    if name == "pusht_distilled" and not Path("runs/pusht_state/result.json").exists():
        teacher = Path("teacher.json")
        teacher.write_text(json.dumps(cut_down(ROOT / "configs/policy/pusht_state.json")))
        assert train(teacher).exit_code == 0


def assert_stands_alone(page):
    outline = Outline(page.read_text(encoding="utf-8"))
    assert all(address.startswith(("#", "data:")) for address in outline.addresses)
    assert page.stat().st_size < 4 << 20
    return outline.texts


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem == "cifar10_small")) for path in CONFIGS],
)
def test_data_and_run_of_the_configuration_have_pages(path, place, monkeypatch):
    for beginning, packages in NEEDS.items():
        if path.stem.startswith(beginning) or path.parent.name == beginning:
            for package in packages.split():
                pytest.importorskip(package, reason=f"NOT CHECKED: {package} is not installed")
    monkeypatch.chdir(place)
    config = place / path.name
    config.write_text(json.dumps(found := cut_down(path)))
    prepare(path.stem, config)

    run("inspect", config, "--html", "data.html")
    texts = assert_stands_alone(place / "data.html")
    for name in found["data"].get("obs") or {}:
        assert any(text.startswith(f"observation: {name}") for text in texts)

    succeeded(train(config))
    directory = place / found["tracker"]["data_path"]
    texts = assert_stands_alone(directory / "report.html")
    said = truly_described(TrainConfig.from_json_path(config)).description  # the file's is of other settings
    assert path.name in said and {"finished", said} <= set(texts)
    for name in json.loads((directory / "result.json").read_text(encoding="utf-8"))["test"]:
        assert name in texts
    written = (directory / "report.html").read_bytes()
    run("report", directory, "--html", "again.html")
    assert len(assert_stands_alone(place / "again.html")) >= len(Outline(written.decode()).texts)
