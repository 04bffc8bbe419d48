"""Frames in a folder, in the natural order of names (2 before 10): a video, or a folder of pictures, per episode; or a
folder per episode with a video of each camera."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import VIDEOS, reading
from dp_prior.data.found_files import by_number
from dp_prior.data.frames import FrameContents, FramePart, frame_bytes, frames_per_block, picture_frames, video_frames
from dp_prior.data.frames.colours import COLOURS
from dp_prior.data.frames.video_frames import declared_frames, read_video, size_of, wrong_count
from dp_prior.files.regular_files import expanded
from dp_prior.tensors.pixels.picture_files import ENDINGS, encoded_picture, import_pillow
from dp_prior.tensors.pixels.video_files import import_av

OWN_FOLDER = (
    "to read videos, move those of each camera, one per episode, into a folder of their own and name that folder in "
    "data.images (docs/cameras.md#formats)"
)


class FolderFrames:
    """See `FrameSource`."""

    def __init__(
        self,
        path: Path,
        ends: np.ndarray,
        numbers: np.ndarray | None = None,
        file: str | None = None,
        contents: FrameContents = COLOURS,
        per_row: int = 1,
    ):
        """
        Args:
            path: the folder of one camera, with frames of all episodes; hidden files in it are ignored.
            ends: (E,) exclusive end row of every recorded episode.
            numbers: (k,) sorted numbers of the episodes whose frames are read; None for all.
            file: name of the camera's video in the folder of each episode; None if these hold its pictures.
            per_row: frames for each row, of which the first is read.
        """
        self.root, self._contents, self._per_row = (path := expanded(path)), contents, per_row
        self._numbers = numbers = np.arange(len(ends)) if numbers is None else numbers
        lengths = np.diff(ends, prepend=0)[numbers]
        self.ends, self._lengths = np.cumsum(lengths), lengths.tolist()
        if not path.is_dir():
            raise DataError(str(path.absolute()), ["no such folder of frames"])
        self._fields = ({} if file is None else {"file": file}) | ({} if per_row == 1 else {"frames_per_row": per_row})
        entries = self._entries(len(ends), file)
        self._is_video = all(entry.suffix.lower() in VIDEOS for entry in entries)
        self.parts = [FramePart(str(entry), (episode,)) for episode, entry in enumerate(entries)]
        self._pictures: dict[str, list[Path]] = {}
        if self._is_video:
            import_av()
            self.size, self._turned = size_of(entries[0], contents), video_frames.turned(entries[0], contents)
            self._check_rate(entries[0])
            return
        import_pillow()
        self._list_pictures(entries)
        first = self._pictures[str(entries[0])][0]
        self.size = contents.decode(_read(first), str(first), None).shape[:2]
        self._turned = picture_frames.turned(_read(first))

    def _entries(self, recorded: int, file: str | None) -> list[Path]:
        """The videos, or the folders of pictures, of the chosen ones of some recorded episodes.

        Raises:
            DataError: other entries are there, some are missing, or there are not as many as episodes.
        """
        entries = [entry if file is None else entry / file for entry in _listed(self.root)]
        is_whole = len(entries) == recorded
        entries = [entries[number] for number in self._numbers] if is_whole else entries
        are_videos = all(entry.suffix.lower() in VIDEOS for entry in entries)
        if not are_videos and (odd := [entry.name for entry in entries if not entry.is_dir()]):
            expected = f"expected a folder or a video per episode and nothing else; {OWN_FOLDER}"
            raise DataError(str(self.root), [f"holds {odd[0]!r}; {expected}"])
        if missing := [f"{entry}: no such file" for entry in entries if not entry.exists()]:
            raise DataError(str(self.root), missing)
        if not is_whole:
            remedy = "one for each that was recorded; an empty folder will do for an episode that is left out"
            raise DataError(str(self.root), [f"holds frames of {len(entries)} episodes; expected {recorded}, {remedy}"])
        return entries

    def _list_pictures(self, entries: list[Path]) -> None:
        """List the pictures of each episode's folder.

        Raises:
            DataError: other files are there, or not as many pictures as the episode has rows.
        """
        problems = []
        for entry, number, length in zip(entries, self._numbers.tolist(), self._lengths, strict=True):
            files = _listed(entry)
            self._pictures[str(entry)] = files[:: self._per_row][:length]
            odd = [file.name for file in files if file.suffix.lower() not in ENDINGS]
            if odd and Path(odd[0]).suffix.lower() in VIDEOS:
                problems.append(f'{entry} holds {", ".join(odd)}; name the video of this camera: "file": "{odd[0]}"')
            elif odd:
                problems.append(f"{entry} holds {odd[0]!r}; expected pictures ({', '.join(ENDINGS)})")
            elif problem := wrong_count(len(files), {str(number): length}, self._per_row, "pictures"):
                problems.append(f"{entry} {problem}")
        if problems:
            raise DataError(str(self.root), problems)

    def _check_rate(self, video: Path) -> None:
        """Raises DataError if the first video tells of another rate; exact counts are checked when frames are read."""
        declared, rows = declared_frames(video), self._lengths[0]
        lengths = {str(self._numbers[0]): rows}
        if not declared or round(declared / rows) == self._per_row:
            return
        if problem := wrong_count(declared, lengths, self._per_row):
            raise DataError(str(video), [problem])

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        if self._is_video:
            (episode,) = part.episodes
            lengths = {str(self._numbers[episode]): self._lengths[episode]}
            how = {"contents": self._contents, "per_row": self._per_row}
            yield from read_video(Path(part.where), self.size, lengths, skip, **how)
            return
        files = self._pictures[part.where]
        per_block = frames_per_block(frame_bytes(self.size, self._contents))
        for first in range(skip, len(files), per_block):
            some = files[first : first + per_block]
            yield np.stack([self._contents.decode(_read(file), str(file), self.size) for file in some])

    def files(self) -> list[Path]:
        if self._is_video:
            return [Path(part.where) for part in self.parts]
        return [*itertools.chain.from_iterable(self._pictures.values())]

    def describe(self) -> dict[str, Any]:
        format = "video per episode" if self._is_video else "pictures"
        return {"format": format, **self._fields, **self._contents.describe(), **self._turned}


def _listed(folder: Path) -> list[Path]:
    with reading(folder):
        return sorted(
            (entry for entry in folder.iterdir() if not entry.name.startswith(".")),
            key=lambda entry: by_number(entry.name),
        )


def _read(path: Path) -> bytes:
    with reading(path):
        return encoded_picture(path)
