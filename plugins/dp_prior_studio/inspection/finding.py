"""A finding about a data set, and the order of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dp_prior_studio.inspection.survey import Survey

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

MOST_NAMED = 5

CODES = {
    "action-is-observation": "the action of a step is recorded as the state of the same step",
    "action-joined": "the action is joined from several keys by their names",
    "action-late": "actions fit the states before them, not those after",
    "action-poses": "the action is a pose of each arm, whose rotation is learned as 6D",
    "action-unnamed": "no key is called action",
    "action-unread": "the key called action holds no numbers",
    "action-unrelated": "no number of the action goes with where states are or go",
    "action-whole-numbers": "the action holds integers",
    "angle-wraps": "an angle jumps by a whole turn",
    "at-limits": "a number is often exactly at its largest or smallest value",
    "beside-data": "a file beside the data set is not read, or a setting reads it",
    "camera-moved": "a camera stands otherwise in some episodes",
    "cameras-exchanged": "two cameras are exchanged in some episodes",
    "classes-rare": "classes have few images",
    "colours-exchanged": "red and blue are exchanged in some episodes",
    "constant": "a number never changes",
    "corrections": "a person corrected the policy in some steps",
    "depth-empty": "no pixel of a depth camera has a distance",
    "depth-range": "distances lie outside near and far",
    "depth-unit": "distances are of another unit",
    "embeddings-pairing": "embeddings of images and of texts do not pair by their files",
    "episodes-damaged": "episodes cannot be read",
    "episodes-differ": "an episode's mean lies far from those of the others",
    "episodes-repeated": "episodes are copies of others",
    "episodes-still": "nothing moves in whole episodes",
    "files-not-read": "files beside images are not read",
    "float32-too-coarse": "numbers differ by less than float32 tells apart",
    "frames-dark": "frames are black, or of one colour",
    "frames-frozen": "a camera shows one picture while the robot moves",
    "gripper-still": "a number that is called a gripper never changes",
    "image-unreadable": "an image cannot be read",
    "images-blank": "images are of one colour throughout",
    "images-enlarged": "images are smaller than data.size",
    "images-grey": "no image has colour, but data.channels is 3",
    "images-repeated": "images are copies of others",
    "instruction-empty": "an instruction is empty",
    "instructions-alike": "instructions differ only in case and blanks",
    "instructions-same-embedding": "instructions share an embedding, or are cut",
    "instructions-unread": "episodes have several instructions, which first settings do not read",
    "jumps": "an observation changes within a step by far more than usual",
    "labels-disagree": "copies of an image have different labels",
    "left-out-of-proposal": "a camera cannot be trained on, and first settings leave it out",
    "length-unusual": "episodes are far shorter or longer than the others",
    "never-finite": "a number is not finite in any step",
    "not-finite": "a number is NaN or infinite in some steps",
    "outliers": "values lie far outside the range of almost all others",
    "pairs-unrelated": "texts fit their images no better than those of other rows",
    "part-not-read": "a part of a set of images is not read",
    "parts": "the data set is divided into parts",
    "parts-overlap": "parts of the data set share episodes",
    "pictures-not-read": "pictures with other endings are not read",
    "points-empty": "a step has no finite point",
    "points-fault": "a cloud does not fit its settings",
    "points-never-finite": "no point is finite",
    "points-no-colours": "the last numbers of points are no colours",
    "points-outside-box": "few points lie in the encoder's box",
    "points-white": "colours reach another value than the encoder's white",
    "quaternion": "numbers are a quaternion that no setting names",
    "quaternion-length": "a quaternion is no rotation in some steps",
    "quaternion-order": "a quaternion looks like the other order than stated",
    "quaternion-orders-differ": "two quaternions agree only in different orders",
    "quaternion-sign": "a quaternion changes its sign within an episode",
    "rate-differs": "timestamps say another rate than the data set",
    "rate-form": "the rate is recorded in another form",
    "refused": "training refuses a key, a division or the images",
    "remark": "the format tells something about the data set",
    "replay": "how many recorded episodes are solved again by their actions",
    "replay-skipped": "recorded episodes cannot be replayed",
    "rest-at-ends": "episodes end, or begin, at rest",
    "rollout-gap": "a program that drives the robot does not give the policy everything",
    "rows-after-end": "rows follow the end of the last episode",
    "rows-not-finite": "embeddings are zero or not finite",
    "rows-repeated": "embeddings of images are copies of others",
    "simulation-gap": "a simulation of the data set cannot be measured in as recorded",
    "sizes-differ": "images have different sizes, and data.size is missing",
    "states-do-not-follow": "states of some episodes do not follow the actions",
    "test-images-in-training": "images of the test set are in the training set",
    "texts-cut": "texts were cut by the model that embedded them",
    "texts-not-read": "texts beside images are not read",
    "time-backwards": "timestamps do not increase",
    "time-gaps": "steps are missing by the timestamps",
    "units-differ": "an observation has another unit than the action that it follows",
    "units-mixed": "episodes have different units",
    "unreadable": "a key or the list of episodes cannot be read",
    "unused-not-finite": "a number that is not used is NaN or infinite in some steps",
    "video-missing": "videos are missing",
}
"""Meaning of each code of a finding. A code stays when its text changes; `dp-prior inspect --json` writes it."""


@dataclass(frozen=True)
class Finding:
    """A fault.

    Attributes:
        severity: error, it cannot be trained on; warning, training goes on but learns something wrong; note, good to
            know.
        episode, frame: where it is first seen, by the data set's own numbers.
        leave_out: own numbers of the episodes that training is better without.
        code: one of `CODES`.
    """

    severity: Severity
    text: str
    episode: int | None = None
    frame: int | None = None
    leave_out: Sequence[int] = ()
    code: str = field(kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """The finding as `dp-prior inspect --json` writes it."""
        place = {"episode": self.episode, "frame": self.frame, "leave_out": [int(number) for number in self.leave_out]}
        return {"code": self.code, "severity": self.severity, "text": self.text, **place}

    def __str__(self) -> str:
        if self.episode is None:
            return self.text
        frame = "" if self.frame is None else f", frame {self.frame}"
        return f"{self.text} (episode {self.episode}{frame})"


def refused(part: str, problems: Sequence[str]) -> list[Finding]:
    """The first of the problems for which training refuses a part of a data set."""
    return [Finding("error", f"{part}: {problem}", code="refused") for problem in problems[:MOST_NAMED]]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings, the most severe first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def faulty_episodes(survey: Survey, findings: Iterable[Finding]) -> list[int]:
    """Own numbers of the episodes that training is better without: damaged episodes, and episodes with a fault unless
    half of all episodes or more have a fault, which may then lie in the rest."""
    numbers = set().union(*(finding.leave_out for finding in findings)).difference(survey.damaged)
    are_few = 2 * len(numbers) < len(survey.lengths)
    return sorted([*survey.damaged, *numbers] if are_few else survey.damaged)
