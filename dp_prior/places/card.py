"""The model card: data, training, scores and usage, from the files of a checkpoint.

`card.md` is its text, a template for Jinja. huggingface_hub writes and checks its metadata.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dp_prior.checkpoints.documents import CONFIG, DATA, SPEC
from dp_prior.checkpoints.format import Manifest
from dp_prior.files.regular_files import read_small

LIBRARY = "dp_prior"
HELD_OUT = "held-out data"
TAGS = {
    "policy": ("robotics", "imitation-learning", "diffusion-policy"),
    "prior": ("diffusion-prior", "embeddings"),
    "image": ("image-generation", "diffusion"),
}
PIPELINES = {"policy": "robotics", "prior": "feature-extraction", "image": "unconditional-image-generation"}
_MINOR = re.compile(r"train/.*|.*/loss_q\d|.*/(score_std|episodes|episode_steps)")  # left out of the card
_BOUND = ("_ci_low", "_ci_high")


def model_card(
    directory: Path,
    manifest: Manifest,
    repo: str,
    *,
    license_name: str | None,
    folder: str = "",
    media: Sequence[str] = (),
    scores: Mapping[str, float | None] = MappingProxyType({}),
) -> str:
    """Write the README.md of a repository, for its best checkpoint.

    Args:
        directory: the checkpoint on this machine; only files that the manifest lists are read.
        folder: folder of the checkpoint in the repository.
        media: paths of pictures and pages in the repository.
        scores: metrics of the final test.
    """
    config, data, spec = (_document(directory, manifest, name) for name in (CONFIG, DATA, SPEC))
    evaluators = [*config.get("evaluate", []), *config.get("test", [])]
    rollouts, replays = _rollouts(evaluators), _replays(evaluators)
    measured, tested = _of_model(manifest.metrics, replays), _of_model(scores, replays)
    episodes = data.get("episodes") if isinstance(data.get("episodes"), dict) else {}
    body = _template().render(
        repo=repo,
        kind=_kind(config),
        folder=folder,
        media=media,
        config=config,
        spec={"cond_shapes": {}, **spec},
        data=data,
        manifest=manifest,
        measured=_rows(measured, rollouts),
        scores=_rows(tested, rollouts),
        counts=", ".join(f"{len(ids)} {part}" for part, ids in episodes.items() if isinstance(ids, list) and ids),
        quoted=json.dumps,
        tuple=tuple,
    )
    return f"{_metadata(repo, license_name, config, {**measured, **tested}, rollouts)}\n\n{body}"


def _document(directory: Path, manifest: Manifest, name: str) -> dict[str, Any]:
    """Read a JSON file of the checkpoint; an empty dict if the manifest does not list the file."""
    return json.loads(read_small(directory / name)) if name in manifest.files else {}


def _kind(config: dict[str, Any]) -> str:
    task_type = config.get("task", {}).get("type")
    return task_type if task_type in ("prior", "image") else "policy"


def _rollouts(evaluators: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The evaluators of any type that play episodes of an environment from a first seed, by name."""
    needed = {"env", "first_seed", "n_episodes"}
    return {evaluator["name"]: evaluator for evaluator in evaluators if needed <= evaluator.keys()}


def _replays(evaluators: list[dict[str, Any]]) -> list[str]:
    """Names of the evaluators that replay demonstrations."""
    return [evaluator["name"] for evaluator in evaluators if evaluator.get("type") == "replay"]


def _of_model(metrics: Mapping[str, float | None], replays: Collection[str]) -> dict[str, float]:
    """The metrics that measure the model, which replays do not."""
    measured = {name: value for name, value in metrics.items() if value is not None and not _MINOR.fullmatch(name)}
    return {name: value for name, value in measured.items() if name.rpartition("/")[0] not in replays}


def _rows(metrics: dict[str, float], rollouts: dict[str, dict[str, Any]]) -> list[tuple[str, float, str, str]]:
    """(name, value, 95 % interval, where measured); the interval comes from metrics named *_ci_low and *_ci_high."""
    stems = {"score": "score_ci", "success_rate": "success_ci"}
    rows = []
    for name, value in metrics.items():
        group, _, kind = name.rpartition("/")
        if name.endswith(_BOUND):
            continue
        stem = f"{group}/{stems.get(kind, kind + '_ci')}"
        low, high = metrics.get(f"{stem}_low"), metrics.get(f"{stem}_high")
        interval = "" if low is None or high is None else f"{low:.4g} to {high:.4g}"
        where = HELD_OUT
        if group in rollouts:
            first, count = rollouts[group]["first_seed"], rollouts[group]["n_episodes"]
            where = f"{count} episodes of {rollouts[group]['env']['type']}, seeds {first} to {first + count - 1}"
        rows.append((name, value, interval, where))
    return rows


@functools.cache
def _template() -> Any:
    """The template of the card, compiled once in a process: compiling takes longer than the rest of a delivery."""
    from jinja2 import ChainableUndefined, Environment

    environment = Environment(trim_blocks=True, undefined=ChainableUndefined, keep_trailing_newline=True)
    return environment.from_string(Path(__file__).with_name("card.md").read_text(encoding="utf-8"))


def _metadata(
    repo: str, license_name: str | None, config: dict[str, Any], metrics: dict[str, float], rollouts: dict[str, Any]
) -> str:
    """The YAML head of the card."""
    from huggingface_hub import EvalResult, ModelCardData

    kind = _kind(config)
    task = PIPELINES[kind]
    results = []
    for name, value in metrics.items():
        group, _, metric = name.rpartition("/")
        if not name.endswith(_BOUND):
            results.append(
                EvalResult(
                    task_type=task,
                    task_name=task,
                    dataset_type=rollouts[group]["env"]["type"] if group in rollouts else HELD_OUT,
                    dataset_name=group or name,
                    metric_type=metric,
                    metric_name=name,
                    metric_value=value,
                )
            )
    backbone = config.get("task", {}).get("backbone", {}).get("type")
    data = ModelCardData(
        license=license_name,
        library_name=LIBRARY,
        pipeline_tag=None if kind == "prior" else task,
        tags=[*TAGS[kind], *([backbone] if backbone else [])],
        model_name=repo.rpartition("/")[2],
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"
