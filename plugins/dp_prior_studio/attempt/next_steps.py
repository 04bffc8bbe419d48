"""Next steps after an attempt: commands, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dp_prior.files.printable import duration
from dp_prior_studio.attempt.attempt_folder import AttemptFolder
from dp_prior_studio.attempt.judgement import Judgement
from dp_prior_studio.attempt.short_training import MeasuredTimes
from dp_prior_studio.inspection.inspection import Inspection

Step = tuple[str, list[str]]
"""Why, and the words of the command."""


def next_steps(
    place: str,
    folder: AttemptFolder,
    inspections: Sequence[Inspection],
    judgement: Judgement,
    times: MeasuredTimes,
    samples: int,
) -> Iterator[Step]:
    """The next commands, the most useful first.

    Args:
        samples: that the short training has seen.
    """
    findings = [finding for inspection in inspections for finding in inspection.findings]
    warnings = [finding for finding in findings if finding.severity != "note"]
    if warnings:
        remainder = f" and {len(warnings) - 1} more" if len(warnings) > 1 else ""
        page = ["dp-prior", "inspect", place, "--html", str(folder.inspection_page)]
        yield f"repair the data first: {warnings[0]}{remainder}", page
    if judgement.overfits:
        reason = (
            "the held-out loss has risen again, so record more episodes rather than train for longer; measure again"
        )
        yield reason, ["dp-prior", "evaluate", str(folder.run)]
    elif samples < times.total:
        time = duration(times.step_s * times.total / times.batch)
        reason = f"train for longer: {times.total:,} samples instead of {samples:,}, about {time}"
        yield reason, ["dp-prior", "train", str(folder.proposal)]
    else:
        yield "the whole proposed training fitted; measure again", ["dp-prior", "evaluate", str(folder.run)]
    if judgement.scaled and judgement.learns:
        yield "let it act, carefully: errors add up on a robot (docs/robot.md)", ["dp-prior", "serve", str(folder.run)]
