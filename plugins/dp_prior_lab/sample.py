"""`dp-prior sample`: draws samples of a model into one file or folder, on any number of ranks, stopped and resumed at
will.

The noise of a sample is a function of seed and index. Whole batches of neighbouring indices are the unit of work: each
is written durably to an unfinished folder beside the target by the one rank it falls to. So neither the number of ranks
nor an interruption changes a bit of the result; another batch size changes samples by rounding alone.

The target is written whole in that folder, then the folder is marked as done (`job.json` becomes `done.json`), then the
target is moved out. If `done.json` exists without a target inside, this request already moved the target out.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import read_manifest
from dp_prior.config import ConfigError
from dp_prior.config.overrides import flat
from dp_prior.data.files import load_npy
from dp_prior.diffusion.draw import Draw
from dp_prior.evaluation.grid import save_png
from dp_prior.evaluation.samples import Part, pick_samples
from dp_prior.files.durable import (
    make_directory,
    replace_file,
    replacing,
    sync_directory,
    sync_file,
    temporary_directory,
)
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.locks import FileLock, NoLocksError, holder_of
from dp_prior.files.regular_files import read_small
from dp_prior.files.temporary import remove_leftovers
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import Abandoned
from dp_prior.run.changes import kind_of
from dp_prior.run.stored import check_origin
from dp_prior.tensors.batch import LABEL, Spec
from dp_prior.tensors.pixels.picture_files import import_pillow
from dp_prior.tensors.randomness import Randomness
from dp_prior_lab.conditions import Conditions, ConditionsFile, HeldOut, Labelled
from dp_prior_lab.trained_model import load_model, watched
from dp_prior_robot.stored_task import StoredTask, read_stored

JOB, JOB_DONE, JOB_LOCK, TARGET = "job.json", "done.json", "lock", "target"


@dataclass(frozen=True)
class Request:
    """A request for samples.

    Attributes:
        n: number of samples.
        out: `.npz` file, or a folder of PNG files.
        batch_size: samples that are drawn together.
        seed: of the noise, and of labels that are drawn.
        labels: names or numbers of classes that samples get in turn; () draws them uniformly.
        conditions: `.npz` file with an array (m, *shape) by key; sample i gets row i modulo m. None for the data.
        split: part of the data whose samples give the conditions, in turn; None for `val`.
        weights: name of an average, or `online`; None for the first average.
        guidance_scale: replaces the configured one.
        overrides: changes of `task.sampler` and `data`.
    """

    n: int
    out: Path
    batch_size: int = 64
    seed: int = 0
    labels: tuple[str, ...] = ()
    conditions: Path | None = None
    split: Part | None = None
    weights: str | None = None
    guidance_scale: float | None = None
    overrides: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether PNG files are written."""
        return self.out.suffix != ".npz"

    @property
    def unfinished(self) -> Path:
        """Folder of the batches drawn so far."""
        return self.out.with_name(f".{self.out.name}.unfinished")

    @property
    def batches(self) -> dict[Path, Tensor]:
        """The indices of each batch, in order, by its file in the unfinished folder."""
        parts = torch.arange(self.n).split(self.batch_size)
        return {self.unfinished / f"batch_{number:08d}.npy": ids for number, ids in enumerate(parts)}


def draw(reference: str, request: Request, ranks: Ranks, report: Callable[[str], None]) -> bool:
    """Draw the samples; goes on where an interrupted call of the same request stopped. A collective.

    Args:
        reference: see `load_model`.
        report: prints a line; called on the main rank.

    Returns:
        False if it was asked to stop before the end; all batches that were drawn are kept.

    Raises:
        FileExistsError: the target exists, or the unfinished folder belongs to another request or process.
        ConfigError: the model cannot be drawn from in this way.
    """
    ranks.decide(lambda: _check_absent(request))
    directory, model = load_model(reference, ranks, weights=request.weights, guidance_scale=request.guidance_scale)
    if request.is_folder:
        import_pillow()
        if len(model.spec.x_shape) != 3 or model.spec.x_shape[-1] not in (1, 3):
            finding = f"is a folder of PNG files, but samples have shape {model.spec.x_shape}; name an .npz file"
            raise ConfigError(f"--out {request.out}", [finding])
    needs_data = request.conditions is None and bool(model.spec.cond_shapes.keys() - {LABEL})
    stored = read_stored(directory, request.overrides, with_data=needs_data)
    check_origin(reference, {"data": stored.data}, request.overrides)
    conditions = _conditions(model.spec, stored if needs_data else None, request, ranks, report)
    files = read_manifest(directory).files
    job = {
        "files": {name: entry.sha256 for name, entry in sorted(files.items()) if name.startswith((CONFIG, "model"))},
        "weights": request.weights,
        "guidance_scale": request.guidance_scale,
        "sampler": stored.task.sampler.model_dump(mode="json"),
        "n": request.n,
        "seed": request.seed,
        "batch_size": request.batch_size,
        **conditions.identity,
    }
    with contextlib.ExitStack() as held:
        ranks.on_main(lambda: held.enter_context(_alone(request)))
        if ranks.decide(lambda: _begin(request, job)):
            return True
        held.enter_context(watched(ranks, request.unfinished))
        try:
            _draw_batches(model, stored.task.sampler, conditions, request, ranks, report)
            ranks.meet(may_leave=True)
            with ranks.busy():
                ranks.decide(lambda: _assemble(request, conditions))
        except Abandoned:
            return False
    return True


def _conditions(
    spec: Spec, stored: StoredTask | None, request: Request, ranks: Ranks, report: Callable[[str], None]
) -> Conditions:
    """The conditions of the samples; `stored` where they come from the data."""
    has_labels = LABEL in spec.cond_shapes and request.conditions is None
    if request.labels and not has_labels:
        raise ConfigError("--labels", ["the model has no labels to choose, or --conditions has them; leave it out"])
    if request.split is not None and stored is None:
        source = "--conditions has them" if request.conditions is not None else "its labels, if any, come by --labels"
        raise ConfigError("--split", [f"the data of the run give no condition of the model: {source}; leave it out"])
    conditions = Conditions()
    if request.conditions is not None:
        conditions = ConditionsFile(request.conditions, spec)
    elif stored is not None:
        data = stored.open(report, ranks.check_before_training)
        settings = flat(stored.data.model_dump(mode="json"), "data")
        chosen = {key: value for key, value in settings.items() if kind_of(key) == "data"}  # such as data.split.seed
        split = request.split or "val"
        identity = {"data": data.document()["fingerprint"], "split": split, **chosen}
        conditions = HeldOut(pick_samples(data, split, "sample"), identity)
    return Labelled(conditions, spec.classes[LABEL], request.labels, request.seed) if has_labels else conditions


def _draw_batches(
    model: Any, sampler: Any, conditions: Conditions, request: Request, ranks: Ranks, report: Callable[[str], None]
) -> None:
    """Draw and write this rank's batches that are not there yet."""
    batches = request.batches
    interval = max(1, len(batches) // (20 * ranks.num_processes))
    for count, path in enumerate(list(batches)[ranks.process_index :: ranks.num_processes]):
        ranks.beat()
        if count % interval == 0 and ranks.is_main_process:
            report(f"{sum(path.exists() for path in batches)} of {len(batches)} batches")
        if path.exists():
            continue
        with ranks.busy():
            ids = batches[path].to(ranks.device)
            random = Randomness.from_counts(request.seed, "predict", ids)
            samples = model.draw(conditions.rows(ids), random, Draw(sampler)).cpu().numpy()
            content = io.BytesIO()
            np.save(content, samples, allow_pickle=False)
            replace_file(path, content.getvalue())


def _check_absent(request: Request) -> None:
    is_own = (request.unfinished / JOB_DONE).exists() and not os.path.lexists(request.unfinished / TARGET)
    if os.path.lexists(request.out) and not is_own:
        raise FileExistsError(
            f"{request.out} exists; nothing is overwritten. Name another file or folder, or delete it"
        )


@contextlib.contextmanager
def _alone(request: Request) -> Iterator[None]:
    """Make the unfinished folder and hold its lock, which the kernel releases when its holder dies.

    Raises:
        FileExistsError: another process holds it.
    """
    folder = request.unfinished
    with _take(request) or contextlib.nullcontext():
        try:
            yield
        finally:
            (folder / JOB_LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds batches
                folder.rmdir()


def _take(request: Request) -> FileLock | None:
    """Create and lock the folder of unfinished samples; None on a file system without locks."""
    path = request.unfinished / JOB_LOCK
    while True:
        make_directory(path.parent)
        try:
            lock = FileLock.take(path)
        except NoLocksError:
            return None
        except FileNotFoundError:  # another call, which has just finished, removed the folder
            continue
        if lock is None:
            finding = f"{holder_of(path)[0]} is drawing to {request.out}; wait for it or stop it, or name another --out"
            raise FileExistsError(finding)
        return lock


def _begin(request: Request, job: dict[str, Any]) -> bool:
    """Note the job in the unfinished folder, or check that it is the same.

    Returns:
        Whether the target exists: an earlier call was killed after it had moved the target out and before the cleanup.

    Raises:
        FileExistsError: the folder belongs to another job, or the target was drawn by no call of this job.
    """
    folder = request.unfinished
    _check_absent(request)
    remove_leftovers(folder)  # of a call that was killed while it wrote the target
    path = folder / (JOB_DONE if (folder / JOB_DONE).exists() else JOB)
    if not path.exists():
        replace_file(path, seal(job))
        return False
    try:
        stored = unseal(read_small(path))
    except ValueError as error:
        raise FileExistsError(f"{path} is damaged ({error}); delete {folder}") from None
    job = json.loads(json.dumps(job))
    if changed := sorted(key for key in job.keys() | stored.keys() if job.get(key) != stored.get(key)):
        differences = "; ".join(f"{key} was {stored.get(key)}, is {job.get(key)}" for key in changed)
        raise FileExistsError(
            f"{folder} holds the unfinished samples of another request: {differences}. Repeat that request to go on, "
            f"name another --out, or delete the folder"
        )
    if is_there := os.path.lexists(request.out):
        _clear(folder)
    else:
        os.replace(path, folder / JOB)
    return is_there


def _assemble(request: Request, conditions: Conditions) -> None:
    """Write the target whole from the batches, move it to its place, then delete the batches."""
    labels, folder = conditions.labels(torch.arange(request.n)), request.unfinished
    target = folder / TARGET
    if target.is_dir():
        shutil.rmtree(target)
    if request.is_folder:
        _write_folder(request, target, labels)
    else:
        labels_array = {} if labels is None else {"arr_1": iter([labels.numpy()])}
        _write_npz(target, request.n, {"arr_0": _parts(request), **labels_array})
    _check_absent(request)
    os.replace(folder / JOB, folder / JOB_DONE)
    sync_directory(folder)
    os.rename(target, request.out)
    sync_directory(request.out.parent)
    _clear(folder)


def _clear(folder: Path) -> None:
    """Delete everything but the lock; delete `done.json`, which says that the target was moved out, last."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == JOB_DONE):
        if path.name != JOB_LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _parts(request: Request) -> Iterator[np.ndarray]:
    for path in request.batches:
        with open(path, "rb") as stream:
            yield load_npy(stream)


def _write_npz(path: Path, n: int, arrays: dict[str, Iterator[np.ndarray]]) -> None:
    """Arrays of n rows, given in parts, as `numpy.savez` writes them; equal content gives equal bytes."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, parts in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                for number, part in enumerate(parts):
                    if number == 0:
                        header = {"descr": part.dtype.str, "fortran_order": False, "shape": (n, *part.shape[1:])}
                        np.lib.format.write_array_header_1_0(file, header)
                    file.write(np.ascontiguousarray(part).tobytes())


def _write_folder(request: Request, target: Path, labels: Tensor | None) -> None:
    """PNG files named by index, and labels in `dataset.json` as EDM has them."""
    with temporary_directory(target) as folder:
        index = 0
        for part in _parts(request):
            for image in part:
                path = folder / f"{index:06d}.png"
                save_png(path, image)
                sync_file(path)
                index += 1
        if labels is not None:
            listed = [[f"{number:06d}.png", label] for number, label in enumerate(labels.tolist())]
            replace_file(folder / "dataset.json", json.dumps({"labels": listed}).encode())
        sync_directory(folder)
        os.rename(folder, target)
