"""RolloutEvaluator: runs the policy in an environment, with the same agent that runs it on a robot.

Episodes are fixed by their seeds and run in blocks of `n_envs`, which ranks divide: every score is the same bit for bit
on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dp_prior.clock import Progress
from dp_prior.config import Config
from dp_prior.data.samples.order import INSTRUCTION_CHARACTERS
from dp_prior.envs.fingerprint import fingerprint
from dp_prior.envs.vector import VectorEnv
from dp_prior.envs.workers import Workers, cores, is_divisible
from dp_prior.evaluation import by_instruction
from dp_prior.evaluation.blind import blinded, refuse_blinding
from dp_prior.evaluation.blocks import run_blocks
from dp_prior.evaluation.bootstrap import worst_tenth
from dp_prior.evaluation.episode_metrics import told_success, with_failures
from dp_prior.evaluation.film import Film
from dp_prior.evaluation.interval import mean_and_deviation, mean_interval, share_interval, share_posterior
from dp_prior.evaluation.measured_models import evaluation_mode, pick_models
from dp_prior.evaluation.measurement import Measurement, evaluation_file, write_report
from dp_prior.evaluation.motion import Motion, motion_table, signals
from dp_prior.evaluation.picture import draw_rollouts
from dp_prior.evaluation.samples import heartbeat, leave_if_asked, rank_and_size, work_of
from dp_prior.evaluation.shuffle import refuse_shuffling, shuffled
from dp_prior.evaluation.smoothness import MEASURES
from dp_prior.evaluation.view import CameraView
from dp_prior.inference.agent import VectorAgent
from dp_prior.inference.instructions import Instructions
from dp_prior.onboard.range_watch import RangeLimits
from dp_prior.tensors.batch import FRAMES, Spec
from dp_prior.tensors.metrics import ReducingRanks

NUMBERS, STAGE_CHARACTERS = 5, 32
"""Columns of an episode's numbers, and of the name of a stage."""
FAR = 10.0
"""Half ranges of training beyond which an observation is told: another unit leads there, and a lost policy seldom."""


class RolloutEvaluator:
    """See `RolloutConfig`, the record that creates it."""

    def __init__(self, config: Config, output_dir: Path | None):
        self.config = config
        self.every = config.every
        self.output_dir = output_dir

    def run(self, models: dict[str, nn.Module], ranks: ReducingRanks | None, progress: Progress) -> Measurement:
        """Run all episodes; a collective after each round of blocks when there are several ranks.

        Raises:
            ValueError: observations or actions of the environment do not fit the policy.
            RuntimeError: on every rank, when a block failed on one of them; a worker failed, or died.
        """
        config = self.config
        policy = pick_models(models, [config.model], config.name)[config.model]
        report = None
        if self.output_dir is not None and rank_and_size(ranks)[0] == 0:
            report = evaluation_file(self.output_dir, config.name, progress, ".json")
        with closing(self._open(policy, ranks, config.n_episodes)) as env:
            world = None if report is None else fingerprint(config.env, env, config.first_seed)
            film = Film(report.with_suffix(".mp4"), config.videos, env.fps) if report and config.videos else None
            rollouts = Rollouts(config, env, policy)
            with evaluation_mode(policy), work_of(ranks).named(config.name, config.n_episodes):
                rows = self._run_episodes(rollouts, env.n_envs, film, ranks)
        result = self._measurement(rows, list(rollouts.followed), rollouts.rate)
        if film is not None:
            with result.writing():
                result.media[f"{config.name}/video"] = film.written()
            with result.writing():
                picture = film.path.with_suffix(".png")
                table = result.tables[f"{config.name}/by_seed"]
                draw_rollouts(picture, film.strips, table, self._headline(result.metrics))
                result.media[f"{config.name}/picture"] = picture
        if report is not None:
            write_report(report, config, progress, replace(result, environment=world))
        return result

    @contextmanager
    def playing(self, policy: Any) -> Iterator[Callable[[range], list[dict[str, Any]]]]:
        """An open environment, as a function from episodes to their rows of `by_seed`; nothing is filmed or written.

        A row has the executed `actions` (steps, A) too.

        Args:
            policy: in evaluation mode; one of this process, or an export.

        Raises:
            ValueError, RuntimeError: see `run`.
        """
        with closing(self._open(policy, None, self.config.env.n_envs)) as env:
            rollouts = Rollouts(self.config, env, policy)

            def play(episodes: range) -> list[dict[str, Any]]:
                found = []
                for start in range(0, len(episodes), env.n_envs):
                    executed: list[np.ndarray] = []
                    table = self._table(rollouts.run(episodes[start : start + env.n_envs], keep=executed.append))
                    paths = np.stack(executed, axis=1)
                    found += [{**row, "actions": path[: row["steps"]]} for row, path in zip(table, paths, strict=True)]
                return found

            yield play

    def _table(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """A row for each episode, see `Rollouts.run`."""
        return [
            {
                "seed": self.config.first_seed + int(episode),
                "score": score,
                "success": told_success(success),
                "steps": int(steps),
                "solved_at": None if math.isnan(solved_at) else int(solved_at),
            }
            for episode, score, success, steps, solved_at in rows[:, :NUMBERS].tolist()
        ]

    def _measurement(self, rows: np.ndarray, names: list[str], rate: float) -> Measurement:
        """Metrics and tables of all episodes, see `Rollouts.run`.

        Args:
            names: of the signals whose motion is measured.
            rate: control steps per second.
        """
        config = self.config
        rows[:, 2] = with_failures(rows[:, 2])
        scores, successes, steps, solved_at = rows[:, 1:NUMBERS].T
        end, limits = NUMBERS + len(names) * len(MEASURES), config.score_range
        motion = motion_table(names, rows[:, NUMBERS:end])
        values = (
            *(*mean_and_deviation(scores), *mean_interval(scores, limits=limits)),
            *(successes.mean(), *share_interval(successes.sum(), len(successes))),
            *(len(scores), steps.mean()),
            worst_tenth(scores),
        )
        metrics = {name: float(value) for name, value in zip(config.metric_names(), values, strict=True)}
        table = self._table(rows)
        result = Measurement(metrics, tables={f"{config.name}/by_seed": table, f"{config.name}/motion": motion})
        if not np.isnan(successes).any():
            result.tables[f"{config.name}/success"] = [_success(successes, solved_at, rate)]
        stages = [by_instruction.decode(row) for row in rows[:, end : end + STAGE_CHARACTERS]]
        if any(stages):
            for line, stage in zip(table, stages, strict=True):
                line["stage"] = stage
            result.tables[f"{config.name}/by_stage"] = _by_stage(stages, successes)
        if rows[:, end + STAGE_CHARACTERS :].any():
            texts = [by_instruction.decode(row) for row in rows[:, end + STAGE_CHARACTERS :]]
            for line, text in zip(table, texts, strict=True):
                line["instruction"] = text
            found = by_instruction.scores_by_instruction(texts, scores, successes, limits)
            result.tables[f"{config.name}/by_instruction"] = found
        return result

    def _open(self, policy: Any, ranks: ReducingRanks | None, most: int) -> VectorEnv:
        """The environment with at most so many rows, in this process or divided among workers."""
        env, workers = self.config.env, self.config.workers
        env = env.model_copy(update={"n_envs": min(env.n_envs, most)})
        if workers is None:
            is_slow = any(policy.spec.kind(key) in FRAMES for key in policy.spec.cond_shapes)
            share = cores() // rank_and_size(ranks)[1]
            workers = share if is_slow and share > 1 and is_divisible(env) else 0
        if not workers:
            return env.create()
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
        """(n_episodes, columns) equal on all ranks, see `Rollouts.run`; the first block is filmed."""
        config = self.config

        def run(episodes: range) -> np.ndarray:
            try:
                return rollouts.run(episodes, film if 0 in episodes else None, ranks)
            except Exception as error:
                seeds = config.first_seed + episodes[0], config.first_seed + episodes[-1]
                error.add_note(f"in evaluator {config.name!r}, in an episode of the seeds {seeds[0]} to {seeds[1]}")
                raise

        return run_blocks(run, config.n_episodes, block, rollouts.width, ranks, config.name)


class Rollouts:
    """Runs blocks of episodes of a policy in an open environment.

    Attributes:
        followed: the signals whose motion is measured.
        rate: control steps per second: those of the policy's data, or else of the environment.
    """

    def __init__(self, config: Config, env: VectorEnv, policy: Any):
        """
        Args:
            config: a `RolloutConfig`.
        """
        self._config, self._env, self._policy = config, env, policy
        self._instructions = Instructions(policy.spec, config.instructions)
        self.followed = signals(env.obs_shapes, env.action_dim, policy.spec, getattr(config.env, "angles", {}))
        self.rate = float(policy.spec.fps or env.fps)

    @property
    def width(self) -> int:
        """Most columns of `run`."""
        texts = INSTRUCTION_CHARACTERS if () in self._env.obs_shapes.values() else 0
        return NUMBERS + len(self.followed) * len(MEASURES) + STAGE_CHARACTERS + texts

    def run(
        self,
        episodes: Sequence[int],
        film: Film | None = None,
        ranks: ReducingRanks | None = None,
        keep: Callable[[np.ndarray], object] = lambda actions: None,
    ) -> np.ndarray:
        """Run a block of episodes.

        Args:
            keep: receives the executed actions of every step.

        Returns:
            (len(episodes), columns): episode, score, success, steps and step of the first success, which may be NaN;
            the measures of each signal's motion; the characters of the stage; and of the episode's instruction, if
            there are instructions.

        Raises:
            ValueError: observations or actions of the environment do not fit the policy.
        """
        config, env, policy, n = self._config, self._env, self._policy, len(episodes)
        check_fit(env, policy.spec, config)
        is_shown = film is not None and config.shows_cameras(policy.spec)
        view = CameraView(policy, keypoints=config.show == "keypoints") if is_shown else None

        def draw(rows: Sequence[int]) -> np.ndarray:
            return env.render(rows) if view is None else view(obs, rows)

        agent = self._agent()
        agent.reset(episodes)
        env.is_watched = True
        first = env.reset([config.first_seed + episode for episode in episodes])
        obs = self._seen(first)
        codes = [by_instruction.encode(values) for values in first.values() if values.dtype.kind == "U"][:1]
        scores, successes, steps, solved_at = *np.zeros((3, n)), np.full(n, np.nan)
        motion = Motion(self.followed, first, env.max_steps, self.rate)
        stages = np.full(n, "")
        broken = np.zeros(n, dtype=bool)
        done = np.zeros(n, dtype=bool)
        with film or Film(None, 0, env.fps) as film:
            film.add(draw, done, successes)
            while not (done | broken).all():
                heartbeat(ranks)
                work_of(ranks).tell(float(np.where(done | broken, 1.0, steps / env.max_steps).mean()))
                actions = agent.act(obs, active=~(done | broken))
                broken |= ~done & ~np.isfinite(actions).all(axis=1)
                # A row with NaN actions has no score; it gets finite actions until the block is over.
                executed = np.where(np.isfinite(actions), actions, 0.0)
                keep(executed)
                env.is_watched = agent.watches or is_shown
                seen, _, now_done, info = env.step(executed)
                obs = self._seen(seen)
                motion.add(actions, seen)
                steps[~done] += 1
                scores, successes = (info[key].astype(np.float64) for key in ("score", "success"))
                solved_at = np.where((successes == 1) & np.isnan(solved_at), steps, solved_at)
                stages = info.get("stage", stages)
                done = now_done
                film.add(draw, done, successes)
        scores[broken] = np.nan
        successes[broken] *= 0.0  # unknown stays unknown
        solved_at[broken] = np.nan
        numbers = np.stack([episodes, scores, successes, steps, solved_at], axis=1)
        reached = by_instruction.encode(stages, STAGE_CHARACTERS)
        return np.concatenate([numbers, motion.measured(steps), reached, *codes], axis=1)

    def _agent(self) -> VectorAgent:
        """Acts in a block of episodes as configured."""
        config = self._config
        return VectorAgent(
            self._policy,
            n_action_steps=config.n_action_steps,
            seed=config.noise_seed,
            sampler=config.sampler,
            warm_start=config.warm_start,
            merge=config.merge,
            delay=config.delay,
            instructions=self._instructions,
            guidance_scale=config.guidance_scale,
            ranges=RangeLimits(tell=FAR),
        )

    def _seen(self, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The observations as the policy sees them, after shuffling and blinding."""
        config = self._config
        return blinded(shuffled(obs, config.shuffle, config.noise_seed), self._policy, config.blind)


def _success(successes: np.ndarray, solved_at: np.ndarray, rate: float) -> dict[str, float | None]:
    """Posterior of the success rate, and mean time until success of the solved episodes; None if none is."""
    posterior = dict(zip(("mean", "low", "high"), share_posterior(float(successes.sum()), len(successes)), strict=True))
    known = solved_at[np.isfinite(solved_at)]
    steps = float(known.mean()) if len(known) else None
    return {
        **{f"posterior_{key}": value for key, value in posterior.items()},
        "steps_to_success": steps,
        "seconds_to_success": steps and steps / rate,
    }


def _by_stage(stages: list[str], successes: np.ndarray) -> list[dict[str, Any]]:
    """How many episodes ended in each stage, and how many of them unsolved; most failures first."""
    found = []
    for stage in sorted(set(stages)):
        own = np.array([other == stage for other in stages])
        failed = None if np.isnan(successes).any() else int((own & (successes < 1)).sum())
        found.append({"stage": stage, "episodes": int(own.sum()), "failed": failed})
    return sorted(found, key=lambda line: -(line["failed"] or 0))


def _fits(found: tuple[int, ...] | None, wanted: tuple[int, ...], is_resized: bool, is_text: bool) -> bool:
    """Whether an environment's observation fits the policy. A camera whose frames are resized may have any size; a text
    that is embedded has shape ()."""
    is_picture = is_resized and found is not None and len(found) == 3 and found[2] == wanted[2]
    return found == wanted or is_picture or (is_text and found == ())


def check_fit(env: VectorEnv, spec: Spec, config: Config) -> None:
    """Raises ValueError unless observations and actions have the policy's keys and shapes, also those taken away."""
    kind = config.env.type
    wanted = {key: tuple(shape[1:]) for key, shape in spec.cond_shapes.items() if key not in spec.previous_actions}
    wrong = [
        key
        for key, shape in wanted.items()
        if not _fits(env.obs_shapes.get(key), shape, key in spec.fits, spec.kind(key) == "text")
    ]
    if wrong:
        raise ValueError(
            f"the policy reads observations {wanted}, but environment {kind!r} gives {env.obs_shapes}; "
            f"they differ in {', '.join(wrong)}. Name the keys of the data as the environment names them"
        )
    if env.action_dim != spec.x_shape[-1]:
        raise ValueError(
            f"the policy's actions have {spec.x_shape[-1]} numbers, those of environment {kind!r} {env.action_dim}"
        )
    refuse_blinding(spec, config.blind)
    refuse_shuffling(spec, config.shuffle)


def enlarged(env: VectorEnv, spec: Spec) -> Iterator[str]:
    """A line for each camera whose frames, or the region of them, have fewer pixels than the policy takes.

    Raises:
        ValueError: a region has no pixel of its frames.
    """
    for key, fit in spec.fits.items():
        high, wide = env.obs_shapes[key][:2]
        seen = tuple(side.stop - side.start for side in fit.box(high, wide))
        if math.prod(seen) < math.prod(fit.size):
            region = "" if fit.region is None else f", of which the policy sees {seen[0]} x {seen[1]}"
            yield (
                f"the environment draws camera {key!r} with {high} x {wide} pixels{region}, enlarged to "
                f"{fit.size[0]} x {fit.size[1]}; draw at least {fit.drawn[0]} x {fit.drawn[1]}"
            )
