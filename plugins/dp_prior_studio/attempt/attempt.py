"""An attempt: inspects a data set, trains on it for a short time, and judges the policy; each part at most once."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.split_data import SplitData
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.open_loop import OpenLoop
from dp_prior.files.printable import duration
from dp_prior.files.regular_files import expanded
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.run.check import check
from dp_prior.run.config import TrainConfig
from dp_prior.run.outcome import Outcome
from dp_prior.run.run import Run
from dp_prior.run.scores import MEDIA
from dp_prior_studio.attempt.attempt_folder import AttemptFolder
from dp_prior_studio.attempt.attempt_page import attempt_page
from dp_prior_studio.attempt.judgement import SAMPLING_STEPS, Judgement, judge
from dp_prior_studio.attempt.next_steps import next_steps
from dp_prior_studio.attempt.short_training import (
    MeasuredTimes,
    measured_times,
    prepared,
    shortened,
    time_for_training,
    time_until_stop,
)
from dp_prior_studio.inspection.cameras import has_videos
from dp_prior_studio.inspection.inspect import inspect
from dp_prior_studio.inspection.inspection import Inspection
from dp_prior_studio.inspection.proposal import can_film, proposed
from dp_prior_studio.inspection.survey import NO_PICTURE, SMALLEST_PICTURE
from dp_prior_studio.pages.data_page import summary, write_inspection

FILMED = 64
"""Most predictions that are filmed."""


class Attempt:
    """One call of `dp-prior try`.

    Attributes:
        place: path of the data set, or `user/name` on the Hub.
        folder: of everything that is written.
    """

    def __init__(
        self, place: str, out: Path, limit_s: float, report: Callable[[str], None], begun: float | None = None
    ):
        """
        Args:
            limit_s: seconds for all of the attempt.
            report: prints a line.
            begun: the start of the attempt, by `time.monotonic`; None for now.
        """
        self.place, self.folder = place, AttemptFolder(out)
        self._report, self._limit_s = report, limit_s
        self._begun = time.monotonic() if begun is None else begun
        self._has_plan = False

    def make(self, overrides: Iterable[str] = ()) -> Outcome:
        """Make the attempt, or go on with it.

        Returns:
            How the short training ended; its policy is judged unless a signal stopped the training.

        Raises:
            DataError: the data set, or a part of it, cannot be read.
            ConfigError: no configuration can be proposed, or `place` is one.
            FileExistsError: the folder holds other files.
        """
        if self.place.endswith(".json"):
            remedy = f"name the data set, or call dp-prior train {shlex.quote(self.place)}"
            raise ConfigError(self.place, [f"is a configuration; {remedy}"])
        self.folder.check(expanded(self.place))
        inspections = inspect(self.place, overrides)
        self._report("\n".join(summary(inspections)))
        for line in refuse_unread(inspections):
            self._report(line)
        fresh = proposed(inspections)
        proposal = self.folder.propose(fresh)
        if proposal != fresh:
            self._report(f"{self.folder.proposal} is used as it stands; inspect would propose other settings now")
        page = write_inspection(inspections, self.folder.inspection_page, Path(self.place).name)
        self._report(f"wrote {page}")
        short, times = self._short(proposal)
        config = TrainConfig.from_json(json.dumps(short), source=str(self.folder.short))
        run = Run(self._limited(config, times), report=self._report_run)
        outcome = run.run()
        if outcome.best is not None and (outcome.status != "stopped" or outcome.wants_more_time):
            self._end(inspections, run, outcome, times)
        run.parts.ranks.end()
        return outcome

    def _short(self, proposal: dict[str, Any]) -> tuple[dict[str, Any], MeasuredTimes]:
        """The configuration of the short training, chosen and checked once, and the times that it was chosen by."""
        stored = self.folder.read(self.folder.short)
        if stored:
            return stored, MeasuredTimes.of_document(self.folder.read(self.folder.times))
        source = str(self.folder.proposal)
        whole = prepared(proposal, self.folder)
        times = measured_times(TrainConfig.from_json(json.dumps(whole), source=source), self._report)
        short = shortened(whole, times, self._remaining_s())
        config = TrainConfig.from_json(json.dumps(short), source=source)
        ranks = Ranks(make_accelerator(config.train.precision, config.train.dist_timeout))
        self._report(check(config, ranks, self._report).plan)
        self._has_plan = True
        self.folder.write(self.folder.times, times.to_document())
        self.folder.write(self.folder.short, short)
        return short, times

    def _report_run(self, text: str) -> None:
        """Report a line of the run, without the plan that the check has reported."""
        if not (self._has_plan and text.startswith("  run ")):
            self._report(text)

    def _limited(self, config: TrainConfig, times: MeasuredTimes) -> TrainConfig:
        """The configuration with the time limit; without one where the limit has no room for the fewest steps."""
        remaining_s = self._remaining_s()
        if time_for_training(remaining_s, times) < 2 * times.evaluation_s + times.step_s:
            self._report(f"the limit of {duration(self._limit_s)} is too short for these data, and may be exceeded")
            return config
        return config.model_copy(
            update={"train": config.train.model_copy(update={"max_runtime": time_until_stop(remaining_s, times)})}
        )

    def _remaining_s(self) -> float:
        """Seconds until the limit; negative behind it."""
        return self._begun + self._limit_s - time.monotonic()

    def _end(self, inspections: Sequence[Inspection], run: Run, outcome: Outcome, times: MeasuredTimes) -> None:
        """Judge the best weights, write the page, and report both."""
        stored = Judgement.of_document(self.folder.read(self.folder.judgement), outcome.best.name)
        if stored is not None and self.folder.page.is_file():
            judgement = stored
        else:
            judgement, curves = self._judged(run, outcome, times)
        steps = list(next_steps(self.place, self.folder, inspections, judgement, times, outcome.samples_seen))
        heads = {"complete": "already tried; nothing is left to train", "stopped": "tried until the time limit"}
        head = heads.get(outcome.status, "tried")
        self._report(f"{head}: {outcome.samples_seen:,} samples in {outcome.progress.global_step:,} steps")
        self._report("\n".join(f"  {word:<13} {text}" for word, text in judgement.lines()))
        self._report(
            f"  {'on a robot':<13} not measured: the policy does not act here, and errors add up where it does"
        )
        if judgement is not stored:
            self._page(inspections, judgement, curves, steps)
            self.folder.write(self.folder.judgement, judgement.to_document())
        if self.folder.page.is_file():
            self._report(f"  {'page':<13} {self.folder.page}")
        lines = ["next", *(f"  {shlex.join(words)}    # {why}" for why, words in steps)]
        self._report("\n".join(lines))

    def _judged(self, run: Run, outcome: Outcome, times: MeasuredTimes) -> tuple[Judgement, OpenLoop | None]:
        """Measure the best weights; a policy that sees cameras is filmed."""
        data, config, checkpoint = run.parts.data, run.parts.config, outcome.best.name
        part = next((record.split for record in config.evaluate if isinstance(record, LossConfig)), "val")
        losses = _losses(outcome, config, times)
        if config.task.kind != "policy":
            return Judgement(checkpoint, part, losses=losses), None
        policy = outcome.load(device=str(run.parts.ranks.device))
        self._film(policy, data, part, outcome)
        return judge(policy, data, part, checkpoint, losses)

    def _film(self, policy: Any, data: SplitData, part: str, outcome: Outcome) -> None:
        """Film an episode, once, if the policy sees cameras: their frames above recorded and predicted actions."""
        media = outcome.directory / MEDIA
        step = outcome.progress.global_step
        if not data.images or (media / f"film_{step:08d}.mp4").is_file():
            return
        if not can_film():
            self._report("no film is made: av and matplotlib are not installed (extras video, plots)")
            return
        record = ActionErrorConfig(
            name="film", split=part, n_samples=FILMED, shown=0, filmed=1, eval_timesteps=(SAMPLING_STEPS,)
        )
        record.create(data, media).run({record.models[0]: policy}, None, outcome.progress)

    def _page(
        self,
        inspections: Sequence[Inspection],
        judgement: Judgement,
        curves: OpenLoop | None,
        steps: Sequence[tuple[str, list[str]]],
    ) -> None:
        try:
            page = attempt_page(self.folder, Path(self.place).name, inspections, judgement, curves, steps)
        except ImportError as error:
            self._report(f"no page is written: {error}")
            return
        page.write(self.folder.page)


def refuse_unread(inspections: Sequence[Inspection]) -> list[str]:
    """Refuse a data set with pictures, depth or points that could not be looked at, which a policy would lack.

    Returns:
        A line for each camera that a data set declares without any video, as one that was fetched without them.

    Raises:
        DataError: names the sensors, and why.
    """
    lines = []
    for inspection in inspections:
        if (survey := inspection.survey) is None:
            continue
        looked_at = {strip.camera for strip in inspection.strips}
        looked_at |= {entry.key for entry in (*inspection.depths, *inspection.clouds)}
        sensors = [key for key in (*survey.cameras, *survey.depths, *survey.clouds) if key not in looked_at]
        shapes = survey.store.keys()
        reasons = {gap.partition(": ")[0]: gap for gap in inspection.gaps}
        sensors += [key for key in reasons if key not in sensors and is_picture_like(key, shapes.get(key, ()))]
        absent = [key for key in sensors if survey.store.dtype(key) == "video" and not has_videos(survey, key)]
        lines += [f"{key}: declared, but none of its videos is here; the policy is trained without" for key in absent]
        sensors = [key for key in sensors if key not in absent]
        if sensors:
            problems = [reasons.get(key, f"{key}: could not be looked at") for key in sensors]
            remedy = (
                "a policy would not see these; repair or convert them (docs/own_data.md), or remove them from a copy"
            )
            raise DataError(inspection.name, problems, remedy)
    return lines


def is_picture_like(key: str, shape: tuple[int, ...]) -> bool:
    """Whether a step of an array may be a picture: its sides say so, and its name does not say otherwise."""
    return len(shape) > 1 and sorted(shape)[-2] >= SMALLEST_PICTURE and NO_PICTURE.search(key) is None


def _losses(outcome: Outcome, config: TrainConfig, times: MeasuredTimes) -> list[tuple[int, float]]:
    """Samples seen and held-out loss at each evaluation, untrained weights first."""
    record = next((record for record in config.evaluate if isinstance(record, LossConfig)), None)
    if record is None:
        return []
    name = f"{record.name}/{record.models[0]}/loss"
    rows = [{"samples_seen": 0, **times.untrained}, *outcome.rows()]
    return [(row["samples_seen"], row[name]) for row in rows if row.get(name) is not None]
