"""The model card: data, training, scores and usage, from the files of a checkpoint.

huggingface_hub writes and checks its metadata.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dp_prior.checkpoints.format import Manifest
from dp_prior.places.parcel import Parcel

LIBRARY = "dp_prior"
HELD_OUT = "held-out data"
TAGS = {"policy": ("robotics", "imitation-learning", "diffusion-policy"), "prior": ("diffusion-prior", "embeddings")}
_MINOR = re.compile(r"train/.*|.*/loss_q\d|.*/(score_std|episodes|episode_steps)")  # left out of the card


def model_card(parcel: Parcel, repo: str, license_name: str | None, folder: str, media: list[str]) -> str:
    """README.md of a repository whose best checkpoint this is.

    Args:
        folder: of the checkpoint in the repository.
        media: pictures by their path in the repository.
    """
    config, spec = parcel.document("config.json"), parcel.document("spec.json")
    manifest = parcel.manifest
    measured, scores = _shown(manifest.metrics), _shown(parcel.intent.scores)
    seeds = _seeds(config)
    sections = [
        f"# {repo.rpartition('/')[2]}",
        config.get("description") or "",
        _summary(config, parcel, folder),
        *(f"![{name.rpartition('/')[2].partition('.')[0]}]({name})" for name in media if name.endswith(".gif")),
        "## Scores" if measured or scores else "",
        _table("On the best weights, measured once at the end", scores, seeds),
        _table("When they were selected", measured, seeds),
        *(f"![{name.rpartition('/')[2].partition('.')[0]}]({name})" for name in media if not name.endswith(".gif")),
        "## Use",
        "```python\n" + snippet(repo, spec, _kind(config)) + "```",
        "The repository holds weights as safetensors and settings as JSON; loading it runs no code of its own.",
        _training(config, parcel.document("data.json"), manifest),
    ]
    body = "\n\n".join(section for section in sections if section)
    return f"{_metadata(repo, license_name, config, {**measured, **scores})}\n\n{body}\n"


def snippet(repo: str, spec: dict[str, Any], kind: str = "policy") -> str:
    """Python code that loads the model and predicts an action or an embedding."""
    shapes = spec.get("cond_shapes", {})
    if kind == "prior":
        words = {"text": "text_embed"}  # data key -> argument of `predict`
        given = ", ".join(
            f"{words.get(key, key)}=torch.ones(1, {', '.join(map(str, shape))})" for key, shape in shapes.items()
        )
        lines = ["import torch", "from dp_prior import load_prior", "", f'prior = load_prior("{repo}")']
        return "\n".join([*lines, f"image_embed = prior.predict({given})"]) + "\n"
    lines = ["import numpy as np", "from dp_prior import Agent, load_policy", "", f'policy = load_policy("{repo}")']
    lines += ["agent = Agent(policy)", "agent.reset(0)", "obs = {"]
    lines += [
        f"    {json.dumps(key)}: np.zeros({tuple(shape[1:])}, dtype=np.float32)," for key, shape in shapes.items()
    ]
    lines += ["}", "action = agent.act(obs)"]
    if "x_shape" in spec:
        lines[-1] += f"  # ({spec['x_shape'][-1]},), in the units of the demonstrations"
    return "\n".join(lines) + "\n"


def _summary(config: dict[str, Any], parcel: Parcel, folder: str) -> str:
    task, manifest = config.get("task", {}), parcel.manifest
    network = task.get("backbone", {}).get("type", "unknown")
    objective = task.get("diffusion", {}).get("objective", {}).get("type", "unknown")
    kind = f"A diffusion {_kind(config)} ({network}, {objective} objective)"
    if not folder:
        return f"{kind} made with `dp_prior`."
    return (
        f"{kind} trained with `dp_prior` for "
        f"{manifest.step:,} steps, {manifest.samples_seen:,} samples. These are the weights of `{folder}`; the "
        f"other checkpoints of the run lie beside it, each also a tag of this repository."
    )


def _training(config: dict[str, Any], data: dict[str, Any], manifest: Manifest) -> str:
    train, source = config.get("train"), config.get("data")
    if not train or not source:
        return ""
    episodes = data.get("episodes") if isinstance(data.get("episodes"), dict) else {}
    counts = ", ".join(f"{len(ids)} {part}" for part, ids in episodes.items() if isinstance(ids, list) and ids)
    store = source.get("episodes", {}).get("type")
    origin = f"`{source.get('type')}`" + (f" from `{store}`" if store else "")
    rows = {
        "data": origin + (f", {counts} episodes" if counts else ""),
        "data fingerprint": f"`{data['fingerprint']}`" if data.get("fingerprint") else None,
        "configuration hash": f"`{manifest.config_hash}`" if manifest.config_hash else None,
        "seed": config.get("seed"),
        "batch size": f"{source.get('batch_size')} a rank, {manifest.world_size} rank(s)",
        "learning rate": f"`{json.dumps(train.get('lr'))}`",
        "weights": "an average: " + ", ".join(train["ema"]) if train.get("ema") else "as trained",
        "saved": manifest.saved_at,
    }
    lines = [
        "## Training",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items() if value is not None),
    ]
    return "\n".join([*lines, "", "`config.json` holds every setting; `dp-prior train` repeats the run from it."])


def _seeds(config: dict[str, Any]) -> dict[str, str]:
    """Seeds of the episodes behind each rollout's numbers, by its name."""
    found = {}
    for part in ("evaluate", "test"):
        for one in config.get(part, []):
            if one.get("type") == "rollout":
                first, count = one["first_seed"], one["n_episodes"]
                environment = one["env"]["type"]
                found[one["name"]] = f"{count} episodes of {environment}, seeds {first} to {first + count - 1}"
    return found


def _kind(config: dict[str, Any]) -> str:
    return "prior" if config.get("task", {}).get("type") == "prior" else "policy"


def _shown(metrics: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None and not _MINOR.fullmatch(name)}


def _table(title: str, metrics: dict[str, float], seeds: dict[str, str]) -> str:
    """Values with their 95 % intervals, which metrics of the names *_ci_low and *_ci_high hold."""
    intervals = {"score": "score_ci", "success_rate": "success_ci"}
    rows = []
    for name, value in metrics.items():
        group, _, kind = name.rpartition("/")
        if kind.endswith(("_ci_low", "_ci_high")):
            continue
        stem = f"{group}/{intervals.get(kind, kind + '_ci')}"
        low, high = metrics.get(f"{stem}_low"), metrics.get(f"{stem}_high")
        interval = "" if low is None or high is None else f"{low:.4g} to {high:.4g}"
        rows.append(f"| `{name}` | {value:.4g} | {interval} | {seeds.get(group, HELD_OUT)} |")
    if not rows:
        return ""
    return "\n".join([f"{title}:", "", "| metric | value | 95 % interval | measured on |", "|---|---|---|---|", *rows])


def _metadata(repo: str, license_name: str | None, config: dict[str, Any], metrics: dict[str, float]) -> str:
    """The YAML head of the card."""
    from huggingface_hub import EvalResult, ModelCardData

    environments = {
        one["name"]: one["env"]["type"]
        for part in ("evaluate", "test")
        for one in config.get(part, [])
        if one.get("type") == "rollout"
    }
    task = "robotics" if _kind(config) == "policy" else "feature-extraction"
    results = [
        EvalResult(
            task_type=task,
            task_name=task,
            dataset_type=environments.get(name.rpartition("/")[0], HELD_OUT),
            dataset_name=name.rpartition("/")[0] or name,
            metric_type=name.rpartition("/")[2],
            metric_name=name,
            metric_value=value,
        )
        for name, value in metrics.items()
        if not name.endswith(("_ci_low", "_ci_high"))
    ]
    backbone = config.get("task", {}).get("backbone", {}).get("type")
    data = ModelCardData(
        license=license_name,
        library_name=LIBRARY,
        pipeline_tag="robotics" if _kind(config) == "policy" else None,
        tags=[*TAGS.get(_kind(config), ()), *([backbone] if backbone else [])],
        model_name=repo.rpartition("/")[2],
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"
