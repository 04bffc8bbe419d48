"""Frames of some episodes, against a slice of all frames, from any frame on."""

import numpy as np

from dp_prior.data.frames import FramePart
from dp_prior.data.frames.chosen_frames import ChosenFrames
from tests.cases import every

LENGTHS = [4, 1, 5, 3, 6]
ENDS = np.cumsum(LENGTHS)
FRAMES = np.arange(ENDS[-1])[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)


class Source:
    """Two files, the second with its episodes in another order than the rows."""

    root, size, ends = "root", (2, 2), ENDS
    parts = [FramePart("a", (0, 1, 2)), FramePart("b", (4, 3))]

    def read(self, part, skip):
        rows = np.concatenate([np.arange(ENDS[n] - LENGTHS[n], ENDS[n]) for n in part.episodes])[skip:]
        for first in range(0, len(rows), 4):
            yield FRAMES[rows[first : first + 4]]

    def describe(self):
        return {"format": "test"}

    def files(self):
        return ["a", "b"]


@every(numbers=[[0], [1, 2], [0, 2, 3], [4], [0, 3, 4], [0, 1, 2, 3, 4]])
def test_frames_are_those_of_the_chosen_episodes(numbers):
    source = ChosenFrames(Source(), np.array(numbers))
    assert source.ends.tolist() == np.cumsum([LENGTHS[n] for n in numbers]).tolist()
    assert sorted(n for part in source.parts for n in part.episodes) == list(range(len(numbers)))
    for part in source.parts:
        rows = np.concatenate(
            [np.arange(ENDS[numbers[n]] - LENGTHS[numbers[n]], ENDS[numbers[n]]) for n in part.episodes]
        )
        for skip in range(len(rows) + 1):
            found = [np.empty((0, 2, 2, 3), np.uint8), *source.read(part, skip)]
            assert np.array_equal(np.concatenate(found), FRAMES[rows[skip:]])


def test_another_choice_is_described_otherwise():
    """Or two choices of episodes of equal lengths in one file would share a frame cache."""
    one, other = (ChosenFrames(Source(), np.array(numbers)) for numbers in ([0, 1], [0, 2]))
    assert one.describe() != other.describe() and one.files() == ["a", "b"] and one.size == (2, 2)
