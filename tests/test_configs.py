"""The configurations in the repository are valid, say what they are, and have the sizes they claim."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.data.errors import MissingError
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.batch import Spec
from tests.faults import assert_none
from tests.messages import naming, told

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*/*.json"))


def test_shipped_configurations_are_valid_described_and_point_to_the_schema(subtests):
    for path in CONFIGS:
        with subtests.test(path.name):
            config = TrainConfig.from_json_path(path)
            assert config.description
            assert TrainConfig(**json.loads(config.to_json())) == config
            schema = json.loads(path.read_text(encoding="utf-8"))["$schema"]
            assert (path.parent / schema).resolve() == ROOT / "configs" / "train_config.schema.json"


def test_descriptions_name_command_hardware_duration_and_a_score_that_the_documents_have(subtests):
    pages = ("results.md", "study.md", "prior.md", "few_steps.md", "images.md", "improving.md", "robosuite.md")
    documents = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in pages)
    for path in CONFIGS:
        with subtests.test(path.name):
            said = TrainConfig.from_json_path(path).description
            assert "Command: " in said and f"--config_file {path.relative_to(ROOT)}" in said
            assert re.search(r"Hardware: .*(CPU core|GPU)", said)
            assert re.search(r"\d min|\d minutes|Duration: not measured", said)
            score = said.partition("Score: ")[2]
            assert re.match(r"not measured|.*\d\.\d", score), "a score, or that there is none"
            assert not [number for number in re.findall(r"\b\d\.\d{3}\b", said) if number not in documents]


@pytest.mark.parametrize(
    ("name", "optimizer"), [("pusht_two_step", ("adamw", 1e-3)), ("pusht_distilled", ("muon", 2e-3))]
)
def test_extensions_of_the_main_job_keep_the_optimizer_that_their_scores_are_of(name, optimizer):
    train = TrainConfig.from_json_path(ROOT / f"configs/policy/{name}.json").train
    assert (train.optimizer.type, train.lr.peak) == optimizer


def test_recipes_keep_the_batch_that_their_scores_are_of():
    jobs = json.loads((ROOT / "docs/results.json").read_text(encoding="utf-8"))["jobs"]["rows"]
    faults = []
    for job in jobs:
        config = TrainConfig.from_json_path(ROOT / f"configs/policy/{job['job']}.json")
        batch, budget = config.data.step_size, config.train.samples
        steps = -(-budget // batch)
        if job["samples"] not in (budget, steps * batch):
            faults.append(f"{job['job']}: {job['samples']} samples are not {steps} steps of {batch}")
    assert_none(faults)


@pytest.mark.parametrize("arguments", [["train"], ["train", "--check"], ["cache"], ["embed"]])
def test_data_that_are_not_there_are_one_error_with_the_command_that_makes_them(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "configs/policy/pusht_goals_image.json"
    more = {"embed": ["--model", "hashed", "--key", "instruction", "--out", "e", "--config_file"], "cache": []}
    done = CliRunner().invoke(main, [*arguments, *more.get(arguments[0], ["--config_file"]), str(path)])
    assert done.exit_code == 65
    assert told(
        done.output,
        "demonstrations/pusht_goals.npz",
        "data.episodes.path",
        "dp-prior make-demonstrations --change goals",
    )
    assert "Score" not in done.output


def test_absent_data_are_a_short_line_and_how_to_get_them_for_every_shipped_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    faults = []
    for path in CONFIGS:
        if path.stem == "digits":  # come with scikit-learn
            continue
        config = TrainConfig.from_json_path(path)
        with pytest.raises(MissingError) as found:
            config.open_data()
        _, *problems, advice = str(found.value).split("\n")
        if len(problems) != len(config.data.recorded_sets() or [config.data]):
            faults.append(f"{path.stem}: {len(problems)} problems")
        if max(map(len, problems)) > 200 or not told(advice, "get", "the data") or len(advice) > 400:
            faults.append(f"{path.stem}: {found.value}")
    assert_none(faults)


def test_a_description_without_data_adds_nothing_to_the_error():
    folders = TrainConfig.from_json_path(ROOT / "configs/prior/clip_embeddings.json", ["data.text.path=none"])
    with pytest.raises(MissingError, match=naming("image_embeddings.npy", "no such")):
        folders.model_copy(update={"description": "Command: dp-prior train. Score: 1."}).open_data()
    with pytest.raises(MissingError, match=naming("image_embeddings.npy", "ask me")):
        folders.model_copy(update={"description": "Mine. Data: ask me"}).open_data()
    with pytest.raises(MissingError) as found:
        folders.model_copy(update={"description": "Data: make --out a.npz. Command: dp-prior train."}).open_data()
    assert str(found.value).endswith("make --out a.npz")  # can be copied


def test_the_recipe_of_fifty_tasks_by_a_camera_keeps_lerobots_protocol():
    """One moved camera, the hand, an instruction, and ten episodes of each task, also with wrong instructions."""
    config = TrainConfig.from_json_path(ROOT / "configs/policy/metaworld_mt50_camera.json")
    (camera,) = config.data.images
    assert config.data.images[camera].render.camera == camera == "corner2_near"
    assert {"corner2_near", "instruction"} == config.task.encoders.keys() and [*config.data.obs] == ["hand"]
    played = [*config.test, config.evaluate[-1]]
    assert all(entry.env.task == "MT50" and entry.env.cameras == {camera: (96, 96)} for entry in played)
    assert [(entry.n_episodes, [*entry.shuffle]) for entry in config.test] == [(500, []), (500, ["instruction"])]
    assert {entry.env.max_steps for entry in played} == {500} and config.evaluate[-1].first_seed == 200000


@pytest.mark.slow
def test_paper_configuration_has_the_size_of_the_paper():
    config = TrainConfig.from_json_path(ROOT / "configs/policy/pusht_state_paper.json")
    spec = Spec(x_shape=(16, 2), cond_shapes={"agent_pos": (2, 2), "keypoint": (2, 9, 2)})
    weights = sum(parameter.numel() for parameter in config.task.create(spec).backbone.parameters())
    assert weights == 65_783_298


@pytest.mark.skipif(not (ROOT / "demonstrations/pusht.npz").exists(), reason="demonstrations/pusht.npz is missing")
def test_embedded_default_trains_on_the_shipped_demonstrations():
    path = f"data.episodes.path={ROOT / 'demonstrations/pusht.npz'}"
    config = TrainConfig.from_json_path(ROOT / "configs/policy/pusht_state.json", [path])
    data = config.data.create(config.task.horizon, config.task.n_obs_steps, config.task.n_action_steps)
    assert len(data.train) > 10_000
    assert data.spec.x_shape == (8, 2)
    assert not data.report()["warnings"]
