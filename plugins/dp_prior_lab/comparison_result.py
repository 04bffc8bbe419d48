"""The result of a comparison of policies: lines for a person, a JSON document, and a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_prior.evaluation.picture import import_figure
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import encode_document
from dp_prior.files.regular_files import read_object
from dp_prior_lab.claim import PLAYERS
from dp_prior_lab.outcomes import LARGEST, OUTCOMES
from dp_prior_lab.verdict import Comparison
from dp_prior_lab.verdict_page import verdict_page
from dp_prior_studio.pages.page import check_page_place

RESULT = "verdict.json"
VERDICT_PAGE = "verdict.html"

NO_START = "no start has a score of both; let both play the same starts, and call these by the same name"
"""What the line of two policies tells that were not scored on a common start."""


def check_verdict_place(out: Path, table: Path) -> None:
    """Check that the verdict about a file of outcomes may be written to a folder.

    Earlier verdicts of such files are replaced, but the verdict of a comparison or blind trial only if `table` is the
    file of its outcomes.

    Raises:
        FileExistsError: `out` is a file, belongs to other work, or has a file of the user in place of a verdict.
        OSError: a file cannot be read.
    """
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; --out names a folder")
    if (out / PLAYERS).exists() and (out / OUTCOMES).resolve() != table.resolve():
        finding = f"{out} holds a comparison, trial or improvement, whose outcomes are not those of {table}"
        raise FileExistsError(f"{finding}; choose another --out")
    document = out / RESULT
    if document.exists() and not {"policies", "pairs"} <= read_object(document, LARGEST).keys():
        raise FileExistsError(f"{document} exists and holds no verdict; choose another --out")
    check_page_place(out / VERDICT_PAGE)


@dataclass(frozen=True)
class ComparisonResult:
    """The verdicts about policies.

    Attributes:
        names: of the policies, in the order of `comparison`.
        most: starts at most; None for outcomes that were noted elsewhere.
    """

    names: Sequence[str]
    comparison: Comparison
    most: int | None = None

    def lines(self) -> list[str]:
        """Lines for a person; a difference is of the policy that is named first, from the other."""
        names, comparison, lines = self.names, self.comparison, []
        for pair in comparison.pairs():
            first, second, difference, (low, high) = names[pair.first], names[pair.second], pair.difference, pair.limits
            if pair.better == pair.second:
                first, second, difference, low, high = second, first, -difference, -high, -low
            head = f"{first} and {second} are not told apart"
            if pair.better is not None:
                head = f"{first} is better than {second}, known after {pair.after} starts"
            evidence = f"difference {difference:+.3f} ({low:+.3f} to {high:+.3f}) on {pair.starts} starts"
            lines.append(f"{head}: {evidence if pair.starts else NO_START}")
        width = max(map(len, names))
        for name, (mean, low, high), letters in zip(names, comparison.means(), comparison.letters(), strict=True):
            lines.append(
                f"  {name:<{width}}  {mean:.3f} ({low:.3f} to {high:.3f})  {letters if len(names) > 2 else ''}".rstrip()
            )
        if (largest := self._most_rollouts) is not None:
            lines.append(f"{comparison.rollouts} rollouts of at most {largest}; {largest - comparison.rollouts} saved")
        lines.append(
            f"a verdict here is wrong with a probability of at most {comparison.error:g}, however often one looks"
        )
        return lines

    def progress(self) -> str:
        """How far a comparison is, in one line."""
        means = ", ".join(
            f"{name} {mean:.3f}" for name, (mean, *_) in zip(self.names, self.comparison.means(), strict=True)
        )
        still = len(self.comparison.undecided())
        ending = "all are told apart" if not still else f"{still} are not told apart yet"
        return f"{self.comparison.scores.shape[1]} of at most {self.most} starts: {means}; {ending}"

    def document(self) -> dict[str, Any]:
        """JSON values; an unknown number is NaN."""
        names, comparison = self.names, self.comparison
        return {
            "error": comparison.error,
            "range": list(comparison.limits),
            "starts": comparison.scores.shape[1],
            "rollouts": comparison.rollouts,
            "most_rollouts": self._most_rollouts,
            "policies": [
                {"policy": name, "mean": mean, "low": low, "high": high, "letters": letters}
                for name, (mean, low, high), letters in zip(
                    names, comparison.means(), comparison.letters(), strict=True
                )
            ],
            "pairs": [
                {
                    "first": names[pair.first],
                    "second": names[pair.second],
                    "starts": pair.starts,
                    "difference": pair.difference,
                    "low": pair.limits[0],
                    "high": pair.limits[1],
                    "better": None if pair.better is None else names[pair.better],
                    "after": pair.after,
                }
                for pair in comparison.pairs()
            ],
        }

    def write(self, out: Path) -> Iterator[Path]:
        """Write a JSON document and a page.

        Raises:
            ImportError: a library of the extra `plots` is not installed.
            OSError: a file cannot be written.
        """
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / RESULT, encode_document(self.document()))
        yield out / RESULT
        import_figure()
        yield verdict_page(self.names, self.comparison, self.most).write(out / VERDICT_PAGE)

    @property
    def _most_rollouts(self) -> int | None:
        return None if self.most is None else self.most * len(self.names)
