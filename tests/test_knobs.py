"""Every field of every record changes something, and some test shows it: a field that none claims fails here.

The records of the roof, of training and of the policy are shown here, on a whole run. The others are shown by the test
file that mirrors their module, which must mention each of their fields; ELSEWHERE names the exceptions.
"""

import ast
import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dp_prior.checkpoints.format import CheckpointError
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.config import records_in
from dp_prior.config.schema import records
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.best import Best, MonitorConfig
from dp_prior.training.divergence import DivergedError
from dp_prior.training.guard import NotFiniteError
from dp_prior.training.learning_rate import LearningRateConfig
from dp_prior.training.trainer import PolicyTrainer
from tests.cases import every
from tests.data.recorded import test_frame_embeddings as observations
from tests.faults import assert_none
from tests.messages import naming
from tests.plugins.dp_prior_worlds import test_pusht_pictures as pictures
from tests.tasks import test_transfer
from tests.tiny import experiment, read_rows, state, tiny

TESTS = Path(__file__).parent
ELSEWHERE = {  # a record or a field -> the test that shows it, where that is not the file of the record's module
    "StateEncoderConfig": "networks/encoders/test_state_encoder.py::test_every_field_of_state_changes_the_encoder",
    **dict.fromkeys(
        ["DiffusionConfig", "PriorDiffusionConfig", "ImageDiffusionConfig"],
        "diffusion/test_process.py::test_every_part_of_the_config_changes_the_loss_the_sample_or_the_likelihood",
    ),
    **dict.fromkeys(
        ["UNet2DConfig.checkpointing", "DiT2DConfig.checkpointing"],
        "networks/test_dropout.py::test_same_gradients_from_less_memory",
    ),
    "FolderConfig.column": "data/embeddings/test_parquet.py::test_any_range_of_parquet_files",
    "ZarrStoreConfig.missing_chunks": "data/formats/zarr/test_chunks.py",
    **dict.fromkeys(
        ["EpisodeFilesConfig.clock", "EpisodeFilesConfig.clocks"],
        "data/formats/test_clocks.py::test_each_step_has_the_row_nearest_in_time",
    ),
    "DepthConfig": "test_depth.py",
    "TrajectoriesConfig.points": "data/recorded/test_points.py",
    "DepthConfig.file": "data/frames/test_folder.py::test_a_folder_per_episode_may_hold_a_video_for_each_camera",
    **dict.fromkeys(
        ["DepthConfig.frames_per_row", "ImageConfig.frames_per_row"],
        "data/frames/test_folder.py::test_of_a_camera_that_is_faster_than_the_rows_the_first_frame_of_each_is_read",
    ),
    "DepthConfig.fit": "test_depth.py::test_the_graph_of_an_export_takes_frames_of_the_robot",
    "ResNetEncoderConfig.depth": "test_depth.py",
    "TrajectoriesConfig.depth": "test_depth.py",
    "TrajectoriesConfig.images": "data/recorded/test_camera.py",
    "ImageConfig.mirror": "data/recorded/test_mirror.py",
    "PushTConfig.camera": "plugins/dp_prior_worlds/renderers/test_pusht.py",
    **dict.fromkeys(
        ["DiffusionConfig.draws", "PriorDiffusionConfig.draws", "ImageDiffusionConfig.draws"],
        "tasks/test_model.py::test_the_loss_of_several_draws_is_the_mean_of_as_many_single_ones",
    ),
    "TrajectoriesConfig.frame_cache": "data/frames/test_frame_column.py::test_the_cache_is_built_once_and_shared",
    "TrajectoriesConfig.language": "data/recorded/test_language.py",
    "TrajectoriesConfig.choice": "data/formats/test_choice.py::test_episodes_are_chosen_by_a_column",
    "TrajectoriesConfig.stride": "data/recorded/test_stride.py::test_windows_are_those_of_every_thinned_recording",
    **dict.fromkeys(
        ["SetConfig.choice", "SetConfig.stride"],
        "data/recorded/test_mixture.py::test_each_set_has_its_own_choice_and_stride",
    ),
    "TrajectoriesConfig.weights": "data/recorded/test_weights.py::test_corrections_alone_or_none_of_them",
    "SetConfig.weights": "data/recorded/test_weights.py::test_the_share_of_a_set_in_a_mixture_is_divided",
    "TrajectoriesConfig.mirror": "data/recorded/test_mirror.py",
    "SetConfig.mirror": "data/recorded/test_mirror.py::test_each_set_of_a_mixture_has_its_own",
    "RolloutConfig.guidance_scale": "test_guided.py::test_rollouts_are_guided",
    **dict.fromkeys(
        ["AdamWConfig.parts", "MuonConfig.parts"],
        "training/test_tuned_parts.py::test_every_part_moves_as_in_a_network_trained_with_its_settings_alone",
    ),
    "PolicyConfig.shared_encoders": "tasks/test_policy_config.py::test_two_cameras_share_one_encoder",
    "LocalUNet1DConfig": "networks/backbones/test_unet1d.py::test_every_field_changes_the_network",
    "TrackerConfig": "tracking/test_tracking.py",
    "FsspecSaverConfig": "places/test_upload.py::test_every_shared_field_is_shown_here",
    "RemoteResumeConfig": "test_hub_runs.py",
    "LocalResumeConfig": "places/test_resume.py",
    **dict.fromkeys(
        [
            "TrainingConfig.compile",
            *(f"{name}.compile" for name in ("DDPM", "DDIM", "DPMSolver", "UniPC", "Euler", "Heun")),
        ],
        "tensors/test_compilation.py",
    ),
    **dict.fromkeys(
        ["LeRobotStoreConfig.repo", "LeRobotStoreConfig.revision"],
        "data/formats/lerobot/test_hub.py::test_a_run_keeps_the_commit_that_it_began_with_and_evaluate_measures_on_it",
    ),
    "LeRobotStoreConfig.folder": (
        "data/formats/lerobot/test_hub.py"
        "::test_a_data_set_in_a_folder_of_a_repository_is_read_and_nothing_else_is_downloaded"
    ),
    "ImageConfig.file": "data/frames/test_folder.py::test_a_folder_per_episode_may_hold_a_video_for_each_camera",
    **dict.fromkeys(
        [f"{name}Config.data_set" for name in ("Loss", "ActionError", "Likelihood", "Similarity", "DrawnImages")],
        "data/recorded/test_mixture.py::test_a_resumed_run_goes_on_at_the_exact_sample_and_says_what_a_new_weight_means",
    ),
    "SplitConfig.max_rows": (
        "data/recorded/test_trajectories.py::test_the_first_rows_are_a_data_set_without_the_other_episodes"
    ),
    "TrackerConfig.report": (
        "plugins/dp_prior_studio/pages/test_report.py::test_a_page_is_written_at_the_end_of_a_run_unless_it_is_not_wanted"
    ),
    "TrainingConfig.shard": "training/test_model_shards.py::test_a_model_in_parts_is_the_same_run_on_any_ranks",
    "TrainingConfig.dist_timeout": "test_chaos.py::test_rank_that_hangs_ends_the_run_in_time_named_and_with_all_stacks",
    "TrainingConfig.max_runtime": "job/test_slurm.py::test_max_runtime_stops_the_run",
    "TrainingConfig.requeue": "job/test_slurm.py::test_time_limit_of_slurm_stops_the_run_which_is_requeued_if_wanted",
}


def path_of_module(module: str) -> list[str]:
    """The folders of a module's tests, and its name."""
    package, *rest = module.split(".")
    return rest if package == "dp_prior" else ["plugins", package, *rest]


RECORDS = records(TrainConfig)
FIELDS = [f"{record.__name__}.{name}" for record in RECORDS for name in record.model_fields if name != "type"]


MODULES = {record.__name__: path_of_module(record.__module__) for record in RECORDS}


@functools.cache
def read_tests(name: str) -> tuple[str, set[str]]:
    """The source of a file of tests, and the functions in it."""
    source = (TESTS / name).read_text(encoding="utf-8")
    return source, {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}


def unshown(field: str) -> Iterator[str]:
    """Why no test shows a field."""
    record, name = field.split(".")
    if field in CHANGES or field in OWN:
        return
    *folders, module = MODULES[record]
    claim = ELSEWHERE.get(field) or ELSEWHERE.get(record) or "/".join([*folders, f"test_{module}.py"])
    file, _, function = claim.partition("::")
    if not (TESTS / file).is_file():
        yield f"{field}: there is no file tests/{file}, which shows it"
        return
    source, functions = read_tests(file)
    if function and function not in functions:
        yield f"{field}: {claim}, which shows it, does not exist"
    if not re.search(rf"\b{name}\b|model_fields|arguments\(\)", source):
        yield f"{field}: {claim} does not mention {name}, so nothing shows that it changes anything; write a test"


def test_some_test_shows_every_field():
    assert_none(fault for field in FIELDS for fault in unshown(field))


def test_claims_are_about_records_that_exist():
    assert set(ELSEWHERE) <= set(FIELDS) | set(MODULES)
    assert set(CHANGES) | set(OWN) <= set(FIELDS)


def run(place: Path, **change: Any) -> Path:
    experiment(tiny(place, **{"train__steps": 4, **change})).run()
    return place / "run"


def weights(run: Path) -> list[bytes]:
    return [value.numpy().tobytes() for name, value in state(run).items() if "online" in name]


def steps(metric: str) -> Callable[[Path], list[int]]:
    return lambda run: [row["step"] for row in read_rows(run) if metric in row]


def plan(place: Path, **change: Any) -> str:
    lines: list[str] = []
    one = experiment(tiny(place, **change))
    one.parts.report = lines.append
    one.run()
    return "\n".join(lines)


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").rglob("*.safetensors"))


def clock(run: Path) -> int:
    return state(run)["progress"]["global_step"]


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step_*"))


CHANGES: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {  # field -> a change, and where it shows
    "TrainConfig.seed": ({"seed": 1}, weights),
    "TrainConfig.task": ({"task__backbone__hidden_dim": 8}, weights),
    "TrainConfig.data": ({"data__split__seed": 1}, weights),
    "TrainConfig.train": ({"train__steps": 3}, clock),
    "TrainConfig.evaluate": ({"evaluate": []}, lambda run: sorted(read_rows(run)[-1])),
    "TrainConfig.test": (
        {"test": [{"type": "loss", "name": "test", "split": "train"}]},
        lambda run: json.loads((run / "result.json").read_text())["test"],
    ),
    "TrainConfig.checkpoints": ({"checkpoints__keep_latest": 3, "train__save_every": {"steps": 1}}, kept),
    "PolicyConfig.arms": (
        {"task__arms": [{"type": "offset", "action": [1, 2], "key": "goal", "slice": [0, 1]}]},
        weights,
    ),
    "PolicyConfig.prefix": ({"task__prefix": {"max_delay": 1}}, weights),
    "PolicyConfig.cond_dropout": ({"task__cond_dropout": {"goal": 0.5}}, weights),
    "TrainingConfig.samples": ({"train__steps": None, "train__samples": 9}, clock),
    "TrainingConfig.epochs": ({"train__steps": None, "train__epochs": 0.3}, clock),
    "TrainingConfig.steps": ({"train__steps": 5}, clock),
    "TrainingConfig.accumulation": ({"train__accumulation": 2}, lambda run: state(run)["progress"]["samples_seen"]),
    "TrainingConfig.optimizer": ({"train__optimizer": {"betas": [0.5, 0.5]}}, weights),
    "TrainingConfig.lr": ({"train__lr": {"type": "constant"}}, weights),
    "TrainingConfig.max_grad_norm": ({"train__max_grad_norm": 1e-6}, weights),
    "TrainingConfig.ema": ({"train__ema": {"ema": {"type": "power"}}}, files),
    "TrainingConfig.monitor": (
        {"train__monitor": {"metric": "validation/online/loss"}},
        lambda run: state(run)["progress"]["best"]["metric"],
    ),
    "TrainingConfig.log_every": ({"train__log_every": {"steps": 1}}, steps("train/loss")),
    "TrainingConfig.save_every": ({"train__save_every": {"steps": 3}}, kept),
}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("unchanged"))


@pytest.mark.parametrize("field", CHANGES)
def test_field_changes_the_run(field, tmp_path, unchanged):
    change, shows = CHANGES[field]
    assert shows(unchanged) != shows(run(tmp_path, **change)), field


def test_description_is_in_the_plan(tmp_path):
    assert "Tiny one." in plan(tmp_path, description="Tiny one.", train__steps=2)


def test_tracker_decides_where_the_run_lies(tmp_path):
    experiment(tiny(tmp_path, train__steps=2, tracker__data_path=str(tmp_path / "there"))).run()
    assert (tmp_path / "there" / "metrics.jsonl").exists() and not (tmp_path / "run").exists()


def test_weights_to_start_from(tmp_path):
    places = [tmp_path / name for name in ("source", "with", "without")]
    for place in places:
        place.mkdir()
    source = run(places[0], train__steps=9)
    assert weights(run(places[1], train__init_from=str(source))) != weights(run(places[2]))


def test_precision_changes_the_loss_and_leaves_the_weights_float32(tmp_path):
    for name in ("exact", "cast"):
        (tmp_path / name).mkdir()
    exact = run(tmp_path / "exact")
    cast = run(tmp_path / "cast", train__precision="bf16")
    assert weights(exact) != weights(cast)
    tensors = [value for name, value in state(cast).items() if isinstance(value, torch.Tensor)]
    assert {value.dtype for value in tensors} <= {torch.float32, torch.float64, torch.int64}
    losses = [read_rows(one)[-1]["train/loss"] for one in (exact, cast)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_number_of_bad_steps_that_end_a_run(tmp_path, monkeypatch):
    step = PolicyTrainer.step

    def poisoned(self, batches):
        batches[0].x.fill_(float("nan"))
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", poisoned)
    for limit in (2, 4):
        with pytest.raises(NotFiniteError, match=naming(f"{limit} optimizer steps", f"step {limit}")):
            run(tmp_path, train__steps=9, train__nonfinite_limit=limit, train__save_every={"steps": 50})


def test_number_of_samples_a_step_takes(tmp_path):
    assert [experiment(tiny(tmp_path, data__batch_size=n)).parts.loader.global_batch_size for n in (4, 6)] == [4, 6]


def test_number_of_samples_that_all_ranks_take_in_a_step(tmp_path):
    loaders = [experiment(tiny(tmp_path, data__global_batch_size=n)).parts.loader for n in (None, 20, 6)]
    assert [(loader.global_batch_size, loader.batch_size, loader.accumulation) for loader in loaders] == [
        (8, 8, 1),
        (20, 7, 3),
        (6, 6, 1),
    ]


def test_number_of_rollbacks_of_a_run(tmp_path, monkeypatch):
    step = PolicyTrainer.step

    def poisoned(self, batches):
        if self.progress.global_step == 3:
            batches[0].x.fill_(float("nan"))
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", poisoned)
    once = {"train__steps": 5, "train__nonfinite_limit": 1, "train__save_every": {"steps": 1}}
    with pytest.raises(NotFiniteError):
        run(tmp_path, **once, tracker__data_path=str(tmp_path / "none"))
    assert state(run(tmp_path, **once, train__rollback=1))["progress"]["rollbacks"] == 1


def test_divergence_decides_how_a_run_with_a_wild_learning_rate_ends(tmp_path):
    wild = {"train__steps": 40, "train__lr": {"type": "constant", "peak": 10.0, "warmup_steps": 0}}
    run(tmp_path, **wild, train__divergence=None, tracker__data_path=str(tmp_path / "none"))
    with pytest.raises(DivergedError):
        run(tmp_path, **wild, train__divergence="stop")


@every(record=records_in(LearningRateConfig))
def test_every_field_of_a_learning_rate_changes_it(record):
    changes = {"peak": 1e-3, "warmup_steps": 40, "final_fraction": 0.5, "power": 3.0, "cycles": 2}
    changes |= {"decay_fraction": 0.5, "decay": "linear", "timescale_steps": 100}
    for name in set(record.model_fields) - {"type"}:
        step = 30 if name in ("peak", "warmup_steps") else 850
        assert record().at(step, 900) != record(**{name: changes[name]}).at(step, 900), name


def test_metric_and_mode_choose_the_best():
    rows = [{"a": 1.0, "b": 5.0}, {"a": 2.0, "b": 4.0}, {"a": 1.5, "b": 6.0}]

    def chosen(**change):
        best = Best(MonitorConfig(**{"metric": "a", "mode": "min", **change}))
        for step, row in enumerate(rows):
            best.improves(row, step)
        return best.step

    assert (chosen(), chosen(mode="max"), chosen(metric="b")) == (0, 1, 1)


def test_number_of_failed_saves_that_end_a_run(tmp_path, monkeypatch):
    tried = []

    def full(self, snapshot, progress, *arguments):
        tried.append(progress.global_step)
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(CheckpointStore, "write", full)
    for limit in (1, 2):
        tried.clear()
        every_step = {"train__save_every": {"steps": 1}, "evaluate": []}
        with pytest.raises(CheckpointError, match=naming("disk", "full")):
            run(tmp_path, checkpoints__max_failed_saves=limit, **every_step)
        assert tried == [1, 2][:limit]


UNET = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}
POLICY = {
    "horizon": 6,
    "n_obs_steps": 1,
    "n_action_steps": 1,
    "relative_to": "agent_pos",
    "encoders": {"goal": {"type": "state", "hidden_dims": [8]}},
    "normalizer": {"action": {"type": "gaussian"}},
    "backbone": UNET,
    "diffusion": {"schedule": {"type": "cosine", "steps": 20}},
    "sampler": {"type": "ddim", "steps": 5},
}


@pytest.mark.parametrize("field", POLICY)
def test_field_changes_the_policy(field, tmp_path):
    def acts(**change):
        """A chunk of an untrained policy, and how much of it is executed."""
        parts = experiment(tiny(tmp_path, **change)).parts
        batch = parts.data.val.fetch(torch.arange(3))
        random = Randomness.from_counts(0, "test", batch.ids)
        return parts.model.eval().sample(batch.cond, random).tolist(), parts.model.n_action_steps

    assert acts() != acts(**{f"task__{field}": POLICY[field]})


OWN = {
    "TrajectoriesConfig.embeddings": observations.test_windows_and_masks_are_those_of_the_same_numbers_in_memory,
    "TrajectoriesConfig.block_rows": observations.test_blocks_decide_the_order_where_there_are_embeddings,
    "TrajectoriesConfig.shuffle_blocks": observations.test_blocks_decide_the_order_where_there_are_embeddings,
    "PushTConfig.embedding": pictures.test_the_environment_gives_the_embedding_of_its_state,
    "TrainConfig.description": test_description_is_in_the_plan,
    "TrainConfig.tracker": test_tracker_decides_where_the_run_lies,
    "TrainingConfig.init_from": test_weights_to_start_from,
    "TransferConfig.may_differ": test_transfer.test_a_further_camera_does_not_move_the_weights_of_the_one_there_was,
    "TransferConfig.only": test_transfer.test_only_the_parts_that_are_named_are_taken,
    "TransferConfig.path": test_transfer.test_a_run_begins_with_the_parts_that_it_names_and_says_what_began_anew,
    "TrainingConfig.precision": test_precision_changes_the_loss_and_leaves_the_weights_float32,
    "TrainingConfig.nonfinite_limit": test_number_of_bad_steps_that_end_a_run,
    "TrainingConfig.rollback": test_number_of_rollbacks_of_a_run,
    "TrainingConfig.divergence": test_divergence_decides_how_a_run_with_a_wild_learning_rate_ends,
    "TrajectoriesConfig.batch_size": test_number_of_samples_a_step_takes,
    "TrajectoriesConfig.global_batch_size": test_number_of_samples_that_all_ranks_take_in_a_step,
    "RetentionConfig.max_failed_saves": test_number_of_failed_saves_that_end_a_run,
    "MonitorConfig.metric": test_metric_and_mode_choose_the_best,
    "MonitorConfig.mode": test_metric_and_mode_choose_the_best,
    **{f"PolicyConfig.{name}": test_field_changes_the_policy for name in POLICY},
    **{
        f"{record.__name__}.{name}": test_every_field_of_a_learning_rate_changes_it
        for record in records_in(LearningRateConfig)
        for name in record.model_fields
        if name != "type"
    },
}
