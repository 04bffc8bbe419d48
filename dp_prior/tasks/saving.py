"""Writes and uploads a model by itself, without a trainer: weights, what describes them, and a card."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from dp_prior.checkpoints.format import Manifest, Snapshot, read_manifest, write_checkpoint
from dp_prior.files.durable import vacant


def save_model(model: nn.Module, save_directory: str | Path) -> Path:
    """See `Pretrained.save_pretrained`, whose record and spec the model has."""
    directory = vacant(save_directory)
    manifest = Manifest(
        sequence=1,
        step=0,
        samples_seen=0,
        world_size=1,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    documents = {
        "config.json": {"task": model.record.to_document()},
        "spec.json": model.spec.model_dump(mode="json"),
    }
    # torch.compile wraps a module, which adds a prefix to the names of its weights
    weights = {name.replace("_orig_mod.", ""): tensor for name, tensor in model.state_dict().items()}
    written, _ = write_checkpoint(directory, Snapshot({"model.safetensors": weights}, documents), manifest)
    if written != directory:
        raise ValueError(f"the weights are not all finite; they were written to {written} for inspection instead")
    return directory


def upload_model(
    model: nn.Module, repo_id: str, commit_message: str, license_name: str | None, **repository: Any
) -> str:
    """See `Pretrained.push_to_hub`. Args: repository: privacy, token and branch of the repository."""
    from dp_prior.places.card import model_card
    from dp_prior.places.hub import CARD, publish

    with tempfile.TemporaryDirectory(prefix="dp_prior_push_") as place:
        directory = save_model(model, Path(place) / "model")
        card = model_card(directory, read_manifest(directory), repo_id, license_name=license_name)
        (directory / CARD).write_bytes(card.encode())
        return publish(directory, repo_id, commit_message, **repository)
