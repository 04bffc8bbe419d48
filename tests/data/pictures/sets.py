"""The same images and labels in every format that there is a source for."""

import io
import json
from pathlib import Path

import numpy as np
import torch

from dp_prior.data.pictures.images import Images, ImagesConfig
from dp_prior.tensors.batch import Batch

CLASSES = ("cat", "dog", "eel")
SPLIT = {"train": 0.7, "val": 0.3}


def images(n: int = 12, size: tuple[int, int] = (6, 4), seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """(n, *size, 3) uint8 in the order of their labels."""
    pixels = np.random.default_rng(seed).integers(256, size=(n, *size, 3), dtype=np.uint8)
    return pixels, sorted(CLASSES[i % 3] for i in range(n))


def encoded(pixels: np.ndarray, **how) -> bytes:
    """A PNG of (H, W, 3) uint8, or in another format."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, **{"format": "PNG", **how})
    return stream.getvalue()


def write_folder(place: Path, pixels: np.ndarray, labels: list[str], labels_from: str = "folder") -> dict:
    """The record of a folder of PNGs."""
    place.mkdir()
    rows = []
    for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        name = {"folder": f"{label}/{i:03}.png", "prefix": f"{label}_{i:03}.png", "csv": f"{i:03}.png"}[labels_from]
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(encoded(image))
        rows.append(f"{name},{label}\n")
    if labels_from == "csv":
        (place / "metadata.csv").write_text("file_name,label\n" + "".join(rows))
    return {"type": "folder", "path": str(place), "labels_from": labels_from}


def write_npz(path: Path, pixels: np.ndarray, labels: list[str]) -> dict:
    """The record of an .npz."""
    np.savez(path, pixels, np.array(labels))
    return {"type": "npz", "path": str(path)}


def write_parquet(
    place: Path,
    pixels: np.ndarray,
    labels: list[str],
    counts: tuple[int, ...] = (7, 0, 5),
    classes: tuple[str, ...] = CLASSES,
) -> dict:
    """The record of parquet files as Hugging Face's `datasets` writes them: numbers of classes, names in metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    place.mkdir()
    features = {"image": {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}}
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema(
        {"image": kind, "label": pa.int64()}, {"huggingface": json.dumps({"info": {"features": features}})}
    )
    done = 0
    for number, count in enumerate(counts):
        rows = range(done, done + count)
        table = pa.table(
            {
                "image": pa.array([{"bytes": encoded(pixels[i]), "path": None} for i in rows], kind),
                "label": pa.array([classes.index(labels[i]) for i in rows], pa.int64()),
            },
            schema,
        )
        parquet.write_table(table, place / f"{number}.parquet", row_group_size=3)
        done += count
    return {"type": "parquet", "path": str(place)}


def opened(place: Path, source: dict, **change) -> Images:
    """The set of a source, with its frames cached in `place`."""
    config = {"source": source, "labels": True, "split": SPLIT, "frame_cache": str(place / "frames"), **change}
    data = ImagesConfig.from_json(json.dumps(config)).create()
    data.build_caches(lambda line: None)
    return data


def everything(data: Images, part: str = "train") -> Batch:
    """All samples of a part, in order."""
    samples = getattr(data, part)
    return samples.fetch(torch.arange(len(samples)))
