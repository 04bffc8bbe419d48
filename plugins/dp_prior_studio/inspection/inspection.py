"""The findings about a data set, recorded episodes, embeddings or images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dp_prior.tensors.normalizer import NormalizerConfig
from dp_prior_studio.inspection.cameras import Strip
from dp_prior_studio.inspection.depth import Distances
from dp_prior_studio.inspection.embeddings import FolderRows
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.image_survey import Gallery
from dp_prior_studio.inspection.points import Cloud
from dp_prior_studio.inspection.survey import Survey


@dataclass(frozen=True)
class Inspection:
    """The findings about a data set.

    Attributes:
        name: of the set in a mixture, or of the place.
        survey: of recorded episodes; None for embeddings and images.
        rows: of embeddings.
        galleries: of images, one for each source.
        data: the JSON that names its keys.
        normalizers: of each signal that has one.
        depths, clouds: distances of each key that is depth, and points of each that is a cloud.
        passed: names of the numbers that a proposed configuration reads, by key; missing for all numbers.
        turn: of the frames of all cameras in a proposed configuration; None for upright frames.
        leave_out: own numbers of the episodes with faults that training is better without.
    """

    name: str
    survey: Survey | None = None
    rows: list[FolderRows] = field(default_factory=list)
    galleries: list[Gallery] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    normalizers: dict[str, NormalizerConfig] = field(default_factory=dict)
    strips: list[Strip] = field(default_factory=list)
    depths: list[Distances] = field(default_factory=list)
    clouds: list[Cloud] = field(default_factory=list)
    passed: dict[str, list[str]] = field(default_factory=dict)
    turn: str | None = None
    leave_out: list[int] = field(default_factory=list)

    @property
    def has_errors(self) -> bool:
        """Whether training refuses the data set, or an episode of the data set."""
        return any(finding.severity == "error" for finding in self.findings)

    def refusals(self) -> list[str]:
        """Why training would refuse the data set without the episodes that are left out."""
        remain = (finding for finding in self.findings if not set(finding.leave_out) & set(self.leave_out))
        return [str(finding) for finding in remain if finding.severity == "error"]

    def to_json(self) -> dict[str, Any]:
        """The findings and gaps as `dp-prior inspect --json` writes them."""
        return {
            "name": self.name,
            "episodes": None if self.survey is None else self.survey.count,
            "findings": [finding.to_json() for finding in self.findings],
            "not_shown": self.gaps,
            "leave_out": [int(number) for number in self.leave_out],
            "data": self.data,
        }
