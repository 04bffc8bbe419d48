"""RolloutEvaluator: scores of a policy in an environment.

Episodes are fixed by their seeds and run in blocks of `n_envs`, which ranks divide: every score is the same bit for bit
on any number of ranks.
"""

from __future__ import annotations

import logging
import math
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from dp_prior.checkpoints.clock import Progress
from dp_prior.envs.fingerprint import fingerprint
from dp_prior.envs.vector import VectorEnv
from dp_prior.evaluation.blocks import run_blocks
from dp_prior.evaluation.episode_metrics import told_success, with_failures, worst_tenth
from dp_prior.evaluation.film import Film
from dp_prior.evaluation.interval import UNBOUNDED, mean_and_deviation, mean_interval, share_interval, share_posterior
from dp_prior.evaluation.measured_models import evaluation_mode, pick_models
from dp_prior.evaluation.measurement import Measurement, WritingEvaluator
from dp_prior.evaluation.motion import motion_table
from dp_prior.evaluation.picture import draw_rollouts
from dp_prior.evaluation.rollouts import Rollouts
from dp_prior.evaluation.samples import leave_if_asked, rank_and_size, work_of
from dp_prior.tensors.batch import FRAMES
from dp_prior.tensors.metrics import ReducingRanks

log = logging.getLogger(__name__)


class RolloutEvaluator(WritingEvaluator):
    """See `RolloutConfig`, the record that creates it."""

    def run(self, models: dict[str, nn.Module], ranks: ReducingRanks | None, progress: Progress) -> Measurement:
        """Run all episodes; a collective after each round of blocks when there are several ranks.

        Raises:
            ValueError: observations or actions of the environment do not fit the policy.
            RuntimeError: on every rank, when a block failed on one of them; a worker failed, or died.
        """
        config = self.config
        policy = pick_models(models, [config.model], config.name)[config.model]
        is_written = self.writes(ranks)
        with closing(self.open(policy, ranks, config.n_episodes)) as env:
            world = fingerprint(config.env, env, config.first_seed) if is_written else None
            is_filmed = is_written and config.filmed > 0
            film = Film(self.file(progress, ".mp4"), config.filmed, env.fps) if is_filmed else None
            rollouts = Rollouts(config, env, policy)
            with evaluation_mode(policy), work_of(ranks).named(config.name, config.n_episodes):
                rows = self._run_episodes(rollouts, env.n_envs, film, ranks)
        result = self._measurement(rows, list(rollouts.followed), rollouts.rate)
        if film is not None and film.fault is not None:
            reason = " ".join(str(film.fault).split())
            log.warning("evaluator %r made no film at step %d: %s", config.name, progress.global_step, reason)
        elif film is not None:
            with result.writing():
                result.media[f"{config.name}/video"] = film.written()
            with result.writing():
                picture = film.path.with_suffix(".png")
                table = result.tables[f"{config.name}/by_seed"]
                draw_rollouts(picture, film.strips, table, self._headline(result.metrics))
                result.media[f"{config.name}/picture"] = picture
        self.report(replace(result, environment=world), progress, ranks)
        return result

    def table(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """A line for each episode, see `Rollouts.columns`."""
        return [
            {
                "seed": self.config.first_seed + int(row["episode"]),
                "score": float(row["score"]),
                "success": told_success(row["success"]),
                "steps": int(row["steps"]),
                "solved_at": None if math.isnan(row["solved_at"]) else int(row["solved_at"]),
            }
            for row in rows
        ]

    def _measurement(self, rows: np.ndarray, names: list[str], rate: float) -> Measurement:
        """Metrics and tables of all episodes, see `Rollouts.columns`.

        Args:
            names: of the signals whose motion is measured.
            rate: control steps per second.
        """
        config = self.config
        rows["success"] = with_failures(rows["success"])
        scores, successes, limits = rows["score"], rows["success"], config.score_range
        beyond = scores[~(abs(scores - scores.clip(*limits)) <= 1e-6) & ~rows["broken"]]
        if len(beyond):
            fault = f"environment {config.env.type!r} states scores from {limits[0]:g} to {limits[1]:g}, but gave"
            remedy = "no interval is clipped to these; correct score_range of its record, or its score"
            log.warning("evaluator %r: %s %.9g: %s", config.name, fault, beyond[0], remedy)
            limits = UNBOUNDED
        values = (
            *(*mean_and_deviation(scores), *mean_interval(scores, limits=limits)),
            *(successes.mean(), *share_interval(successes.sum(), len(successes))),
            *(len(scores), rows["steps"].mean()),
            worst_tenth(scores),
        )
        metrics = {name: float(value) for name, value in zip(config.metric_names(), values, strict=True)}
        labels = [name for name in ("stage", "instruction") if any(rows[name])]
        table = self.table(rows)
        for line, row in zip(table, rows, strict=True):
            line.update({name: str(row[name]) for name in labels})
        motion = motion_table(names, rows["motion"])
        result = Measurement(metrics, tables={f"{config.name}/by_seed": table, f"{config.name}/motion": motion})
        if not np.isnan(successes).any():
            result.tables[f"{config.name}/success"] = [_success(successes, rows["solved_at"], rate)]
        if "stage" in labels:
            result.tables[f"{config.name}/by_stage"] = _by_stage(rows["stage"].tolist(), successes)
        if "instruction" in labels:
            from dp_prior.evaluation.instruction_scores import scores_by_instruction

            by_instruction = scores_by_instruction(rows["instruction"].tolist(), scores, successes, limits)
            result.tables[f"{config.name}/by_instruction"] = by_instruction
        return result

    def open(self, policy: Any, ranks: ReducingRanks | None, n_rows: int) -> VectorEnv:
        """The environment with at most `n_rows` rows, in this process or divided among workers."""
        env, workers = self.config.env, self.config.workers
        env = env.model_copy(update={"n_envs": min(env.n_envs, n_rows)})
        is_slow = any(policy.spec.kind(key) in FRAMES for key in policy.spec.cond_shapes)
        if workers == 0 or (workers is None and not is_slow):
            return env.create()
        from dp_prior.envs.workers import Workers, cores, is_divisible

        if workers is None:
            share = cores() // rank_and_size(ranks)[1]
            if share <= 1 or not is_divisible(env):
                return env.create()
            workers = share
        return Workers(env, min(workers, env.n_envs), lambda: leave_if_asked(ranks))

    def _headline(self, metrics: dict[str, float]) -> str:
        """The result in one line."""
        name = self.config.name
        score, low, high, solved = (
            metrics[f"{name}/{kind}"] for kind in ("score", "score_ci_low", "score_ci_high", "success_rate")
        )
        share = "" if math.isnan(solved) else f", solved {solved:.0%}"
        return f"{name}: score {score:.3f}, 95 % CI {low:.3f} to {high:.3f}{share}"

    def _run_episodes(
        self, rollouts: Rollouts, block: int, film: Film | None, ranks: ReducingRanks | None
    ) -> np.ndarray:
        """(n_episodes,) rows, equal on all ranks, see `Rollouts.columns`; the first block is filmed."""
        config = self.config

        def run(episodes: range) -> np.ndarray:
            try:
                return rollouts.run(episodes, film if 0 in episodes else None, ranks)
            except (Exception, SystemExit) as error:
                seeds = config.first_seed + episodes[0], config.first_seed + episodes[-1]
                error.add_note(f"in evaluator {config.name!r}, in an episode of the seeds {seeds[0]} to {seeds[1]}")
                if isinstance(error, SystemExit):
                    raise RuntimeError(f"the environment called sys.exit({error.code!r})") from error
                raise

        return run_blocks(run, config.n_episodes, block, rollouts.columns, ranks, config.name)


def _success(successes: np.ndarray, solved_at: np.ndarray, rate: float) -> dict[str, float | None]:
    """Posterior of the success rate, and mean time until success of the solved episodes; None if none is."""
    posterior = dict(zip(("mean", "low", "high"), share_posterior(float(successes.sum()), len(successes)), strict=True))
    solved_at = solved_at[np.isfinite(solved_at)]
    steps = float(solved_at.mean()) if len(solved_at) else None
    return {
        **{f"posterior_{key}": value for key, value in posterior.items()},
        "steps_to_success": steps,
        "seconds_to_success": steps and steps / rate,
    }


def _by_stage(stages: list[str], successes: np.ndarray) -> list[dict[str, Any]]:
    """How many episodes ended in each stage, and how many of them unsolved; most failures first."""
    lines = []
    for stage in sorted(set(stages)):
        is_here = np.array([other == stage for other in stages])
        failed = None if np.isnan(successes).any() else int((is_here & (successes < 1)).sum())
        lines.append({"stage": stage, "episodes": int(is_here.sum()), "failed": failed})
    return sorted(lines, key=lambda line: -(line["failed"] or 0))
