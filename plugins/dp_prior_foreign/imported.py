"""Writes a published model as a run at step 0, which predicts, is evaluated, uploaded and fine-tuned as others are."""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from dp_prior.checkpoints.documents import CONFIG, SOURCE, SPEC
from dp_prior.checkpoints.format import Manifest, Snapshot, write_checkpoint
from dp_prior.files.durable import publish, replace_file, temporary_directory, vacant
from dp_prior.files.json_text import encode_document
from dp_prior.files.regular_files import expanded
from dp_prior.run.config import TrainConfig
from dp_prior_foreign.importers import dalle2, diffusion_policy, improved_diffusion, lerobot
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from dp_prior_foreign.importers.foreign_model import PublishedModel
from dp_prior_foreign.importers.foreign_policy import Published

Format = Literal["lerobot", "diffusion_policy", "improved_diffusion", "dalle2"]
READERS: dict[Format, Callable[[PublishedFiles], Published | PublishedModel]] = {
    "lerobot": lerobot.read,
    "diffusion_policy": diffusion_policy.read,
    "improved_diffusion": improved_diffusion.read,
    "dalle2": dalle2.read,
}
_FILES: dict[str, Format] = {
    diffusion_policy.FOREIGN_SETTINGS: "diffusion_policy",
    improved_diffusion.FOREIGN_SETTINGS: "improved_diffusion",
    dalle2.FOREIGN_SETTINGS: "dalle2",
}
"""Files by which a format is recognised; LeRobot's has none of these."""


def import_published(
    reference: str, out: Path, layout: Format | None = None, names: Mapping[str, str] | None = None
) -> str:
    """Write a published model to `out`, a run whose only checkpoint has its weights and normalizer. The run appears
    complete or not at all.

    Its configuration fine-tunes it in another directory, once the paths of data are given.

    Args:
        reference: a directory, or a repository of the Hub; see `PublishedFiles`.
        layout: of the files; None for the format whose file of settings there is, else LeRobot's.
        names: of observations here, by their key in the source.

    Returns:
        Lines: a description of the model, keys of its configuration that are ignored, each with the reason, and the
        command that fine-tunes the model.

    Raises:
        FileNotFoundError: there is no such place, or a file is missing.
        FileExistsError: `out` is not empty.
        RemoteError: the Hub cannot be reached.
        ConfigError: the model, or a part of it, has no counterpart here. Nothing is written.
    """
    files = PublishedFiles(reference)
    if layout is None:
        layout = next((layout for name, layout in _FILES.items() if files.has(name)), "lerobot")
    published = READERS[layout](files).renamed(names or {})
    model, parts = published.create(), published.configuration()
    place = f"{files.place}@{files.revision}" if files.revision else files.place
    config = {
        **parts,
        "description": f"{published.library}'s {published.kind}, imported from {place}.",
        "train": {**parts["train"], "init_from": str(expanded(out).resolve())},
        "tracker": {"data_path": f"{out}_tuned"},
    }
    whole = TrainConfig.from_json(json.dumps(config), source=f"{files.place}, converted").model_dump(mode="json")
    origin = {"format": layout, "place": files.place, "revision": files.revision, "files": files.hashes}
    origin |= published.origins() if isinstance(published, Published) else published.origin
    documents = {CONFIG: whole, SPEC: model.spec.model_dump(mode="json"), SOURCE: origin}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = Manifest(sequence=1, step=0, samples_seen=0, world_size=1, saved_at=now)
    out = vacant(out)
    with temporary_directory(out) as temporary:
        checkpoints = temporary / "checkpoints"
        checkpoints.mkdir()
        snapshot = Snapshot({"model.safetensors": model.state_dict()}, documents)
        write_checkpoint(checkpoints / manifest.folder, snapshot, manifest)
        replace_file(temporary / CONFIG, encode_document(whole))
        publish(temporary, out)
    count = sum(parameter.numel() for parameter in model.parameters())
    headline = f"imported {published.library}'s {published.kind}, {count / 1e6:.2f} M parameters, from {place} to {out}"
    options = " ".join(f"--set {path}=..." for path in published.to_fill_in)
    return "\n".join(
        [
            headline,
            *(f"ignored {', '.join(keys)}: {reason}" for reason, keys in published.ignored.items()),
            f"next\n  dp-prior train {shlex.quote(str(out / CONFIG))} {options}",
        ]
    )
