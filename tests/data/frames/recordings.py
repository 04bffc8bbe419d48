"""The same episodes of pictures in every format that frames are read from."""

import io
import json
import os
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np

KEY = "image"


def pictures(n, height=24, width=32, seed=0):
    """(n, height, width, 3) uint8: noise, so that no two frames and no two pixels are alike."""
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def ends_of(lengths):
    return np.cumsum(np.array(lengths, dtype=np.int64))


def write_zarr(path: Path, frames, lengths, version=2, chunk=5, **arrays):
    import zarr

    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name, values in {f"data/{KEY}": frames, "meta/episode_ends": ends_of(lengths), **arrays}.items():
        group.create_array(name, data=values, chunks=(min(chunk, len(values)), *values.shape[1:]))
    return path


def zip_of(folder: Path):
    path = folder.with_suffix(".zarr.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder).as_posix())
    return path


def write_npz(path: Path, frames, lengths):
    np.savez_compressed(path, **{KEY: frames, "episode_ends": ends_of(lengths)})
    return path


def write_robomimic(path: Path, frames, lengths, key=f"obs/{KEY}"):
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths)
        for number in sorted(range(len(lengths)), key=str):  # demo_10 is written before demo_2, as names sort
            first = sum(lengths[:number])
            demonstration = data.create_group(f"demo_{number}")
            demonstration.attrs["num_samples"] = lengths[number]
            rows = np.arange(first, first + lengths[number], dtype=np.float32)
            demonstration["actions"] = np.stack([rows, -rows], axis=1)
            demonstration["states"] = rows[:, None]
            demonstration.create_dataset(key, data=frames[first : first + lengths[number]], compression="gzip")
    return path


def png(frame, mode=None):
    from PIL import Image

    stream = io.BytesIO()
    picture = Image.fromarray(frame)
    (picture if mode is None else picture.convert(mode)).save(stream, "PNG")
    return stream.getvalue()


def write_video(path: Path, frames, fps=10, times=None, codec="libx264rgb", pix_fmt="rgb24", options=None):
    """Lossless; `times` are the timestamps in 1 / fps, by default 0, 1, 2, ..."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "matroska" if codec == "ffv1" else None  # MP4 of PyAV 15 does not hold it
    with av.open(str(path), "w", format=kind) as container:
        stream = container.add_stream(codec, rate=fps, options=options or {"crf": "0", "preset": "ultrafast"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pix_fmt
        stream.codec_context.time_base = Fraction(1, fps)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24" if frames.ndim == 4 else pix_fmt)
            frame.pts, frame.time_base = number if times is None else times[number], Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_lerobot(path: Path, frames, lengths, version, kind, fps=10, info=None, **how):
    """`kind` is video or image; v3.0 puts all episodes into one file, v2.1 each into its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (path / "meta").mkdir(parents=True)
    is_v3, ends = version == "v3.0", ends_of(lengths)
    feature = {"dtype": kind, "shape": [*frames.shape[1:3], 3], **(info or {})}
    places = {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        if is_v3
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if is_v3
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    features = {"action": {"dtype": "float32", "shape": [1]}, KEY: feature}
    document = {"codebase_version": version, "fps": fps, "chunks_size": 1000, "features": features, **places}
    (path / "meta/info.json").write_text(json.dumps(document))

    def table(episodes):
        rows = np.concatenate([np.arange(ends[e] - lengths[e], ends[e]) for e in episodes])
        columns = {
            "action": rows.astype(np.float32),
            "episode_index": np.repeat(episodes, [lengths[e] for e in episodes]),
            "frame_index": np.concatenate([np.arange(lengths[e]) for e in episodes]),
        }
        if kind == "image":
            columns[KEY] = [{"bytes": png(frames[row]), "path": f"frame-{row}.png"} for row in rows]
        return pa.table(columns)

    def save(content, name):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, path / name)

    everything = range(len(lengths))
    if is_v3:
        save(table(everything), "data/chunk-000/file-000.parquet")
        starts = (ends - lengths) / fps
        zero = [0] * len(lengths)
        listing = {"episode_index": list(everything), "length": list(lengths)}
        listing |= {"data/chunk_index": zero, "data/file_index": zero}
        if kind == "video":
            before = f"videos/{KEY}/"
            listing |= {f"{before}chunk_index": zero, f"{before}file_index": zero, f"{before}from_timestamp": starts}
            write_video(path / f"videos/{KEY}/chunk-000/file-000.mp4", frames, fps, **how)
        save(pa.table(dict(reversed(listing.items()))), "meta/episodes/chunk-000/file-000.parquet")
        return path
    lines = [json.dumps({"episode_index": e, "length": int(lengths[e])}) for e in everything]
    (path / "meta/episodes.jsonl").write_text("\n".join(lines) + "\n")
    for e in everything:
        save(table([e]), f"data/chunk-000/episode_{e:06d}.parquet")
        if kind == "video":
            some = frames[ends[e] - lengths[e] : ends[e]]
            write_video(path / f"videos/chunk-000/{KEY}/episode_{e:06d}.mp4", some, fps, **how)
    return path


def write_folder(path: Path, frames, lengths, kind):
    """Episodes 0, 1, ..., 10: the order of their numbers is not that of their names."""
    ends = ends_of(lengths)
    for e, end in enumerate(ends):
        some = frames[end - lengths[e] : end]
        if kind == "video":
            write_video(path / f"run{e}.mp4", some)
            continue
        (path / f"run{e}").mkdir(parents=True)
        for number, frame in enumerate(some):
            (path / f"run{e}/{number}.png").write_bytes(png(frame))
    return path


class MadeFrames:
    """A `FrameSource` of pixels in memory, of several episodes per part, with a log of what was read."""

    size = (24, 32)

    def __init__(self, root: Path, lengths, parts, seed=0):
        from dp_prior.data.frames import FramePart

        self.root, self.ends, self.log = root, ends_of(lengths), root / "read.log"
        self.parts = [FramePart(f"{root}/{number}", tuple(episodes)) for number, episodes in enumerate(parts)]
        self.frames = pictures(sum(lengths), *self.size, seed=seed)
        for part in self.parts:
            if not os.path.exists(part.where):
                Path(part.where).write_bytes(b"frames")

    def read(self, part, skip):
        with open(self.log, "a", errors="backslashreplace") as log:
            log.write(f"{os.getpid()} {part.where} {skip}\n")
        lengths = np.diff(self.ends, prepend=0)
        rows = np.concatenate([np.arange(self.ends[e] - lengths[e], self.ends[e]) for e in part.episodes])[skip:]
        for first in range(0, len(rows), 3):
            yield self.frames[rows[first : first + 3]]

    def files(self):
        return [Path(part.where) for part in self.parts]

    def describe(self):
        return {"format": "made"}
