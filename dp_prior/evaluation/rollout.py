"""Rollouts: the policy runs in an environment, with the same agent that runs it on a robot.

Episodes are fixed by their seeds and run in blocks of `n_envs`, which ranks divide: every score is the same bit for bit
on any number of ranks.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import nn

from dp_prior.actions import arm_keys
from dp_prior.batch import Spec
from dp_prior.clock import Cadence, Progress
from dp_prior.config import Config, ConfigError
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.envs import EnvConfig
from dp_prior.envs.vector import VectorEnv
from dp_prior.envs.workers import Workers, cores, is_divisible
from dp_prior.evaluation import by_instruction
from dp_prior.evaluation.blind import blinded, refuse_blinding
from dp_prior.evaluation.blocks import run_blocks
from dp_prior.evaluation.film import Film
from dp_prior.evaluation.interval import mean_and_deviation, mean_interval, share_interval
from dp_prior.evaluation.measurement import EvaluatorName, Measurement, write_report
from dp_prior.evaluation.models import evaluation_mode, pick_models
from dp_prior.evaluation.picture import draw_rollouts, import_figure
from dp_prior.evaluation.samples import heartbeat, rank_and_size
from dp_prior.evaluation.shuffle import refuse_shuffling, shuffled
from dp_prior.evaluation.video import import_av
from dp_prior.evaluation.view import CameraView, cameras
from dp_prior.inference.agent import VectorAgent
from dp_prior.inference.chunking import MergeConfig, Prefix, delay_fault
from dp_prior.inference.instructions import Instructions
from dp_prior.metric_names import Metric
from dp_prior.metrics import Ranks
from dp_prior.networks.encoders.camera import CameraEncoderConfig
from dp_prior.networks.encoders.resnet import ResNetEncoderConfig
from dp_prior.tasks.policy import PolicyConfig

log = logging.getLogger(__name__)


class RolloutConfig(Config):
    """Scores in an environment: mean, spread and 95 % confidence intervals over fixed seeds.

    The interval of the mean score is Student's t, that of the success rate Wilson's. Where the environment gives
    instructions, a table of the report has the scores by instruction.
    """

    type: Literal["rollout"] = "rollout"

    tasks: ClassVar = ("policy",)
    reports: ClassVar = True

    metrics: ClassVar = (
        Metric("<name>/score", "score", "higher", "Mean score over the episodes, as the environment defines it."),
        Metric("<name>/score_std", "score", None, "Standard deviation of the score over episodes."),
        Metric("<name>/score_ci_low", "score", "higher", "Lower end of the 95 % interval of the mean (Student's t)."),
        Metric("<name>/score_ci_high", "score", "higher", "Upper end of that interval."),
        Metric("<name>/success_rate", "share", "higher", "Share of episodes solved; NaN if success is not reported."),
        Metric("<name>/success_ci_low", "share", "higher", "Lower end of the 95 % interval of the share (Wilson)."),
        Metric("<name>/success_ci_high", "share", "higher", "Upper end of that interval."),
        Metric("<name>/episodes", "episodes", None, "Episodes run."),
        Metric("<name>/episode_steps", "steps", "lower", "Mean length of an episode until solved or over."),
    )

    name: EvaluatorName = "rollout"
    """First part of the metrics' names, for example `rollout/score`, and of the files'."""

    every: Cadence = Cadence(epochs=50)
    """How often it runs, besides at the end."""

    env: EnvConfig
    """The environment."""

    workers: int | None = Field(default=None, ge=0)
    """Processes that step the environment, each a share of the episodes that run side by side; 0: this process alone.
    null: for `pusht` and `gym` one for each core, which ranks divide among themselves, if the policy sees camera
    frames, otherwise 0."""

    model: str = "ema"
    """Weights of the policy: the name of an average in `train.ema`, or `online` for the trained weights themselves."""

    n_episodes: int = Field(default=50, ge=2)
    """Episodes in all."""

    first_seed: int = Field(default=100_000, ge=0)
    """Seed of the first episode; the others count up. Keep it away from the seeds of demonstrations."""

    noise_seed: int = 0
    """Seed of the policy's noise, together with the episode and its step."""

    n_action_steps: int | None = Field(default=None, ge=1)
    """Actions executed before the next prediction; null for the policy's setting."""

    sampler: SamplerConfig | None = None
    """Replaces the policy's sampler; null keeps it."""

    guidance_scale: float | None = None
    """Replaces the scale of `task.diffusion.guidance`; null keeps it. Above 1 the observations are amplified."""

    warm_start: bool = False
    """Start every prediction but the first of an episode from the unused rest of the last chunk, noised by `renoise`
    of the sampler; takes fewer steps."""

    delay: int = Field(default=0, ge=0)
    """Control steps between an observation and the first executed action of its chunk, as on a robot that acts while
    the chunk is predicted; 0 predicts in no time. The first chunk of an episode is waited for."""

    merge: MergeConfig | None = None
    """How a chunk follows the unfinished one; a delay needs it. null: naive, the robot jumps to the new chunk."""

    blind: list[str] = []
    """Observations that the policy does not get: it sees mid-grey frames, and vectors at their mean in training. A
    control: the same weights must score worse without an observation that they use."""

    shuffle: list[str] = []
    """Instructions that the policy gets from another episode, with another text. A control: a policy that follows its
    instructions scores worse."""

    instructions: Path | None = None
    """Folder of embeddings by `dp-prior embed`, or of the model, for the environment's instructions; null: the model
    that embedded those of training."""

    videos: int = Field(default=4, ge=0)
    """The first N episodes are filmed, side by side in one video and as a picture; 0 for none."""

    show: Literal["camera", "keypoints", "environment"] | None = None
    """What films show: the camera frames that the policy got, with its crop (camera), and with the positions that a
    spatial softmax finds (keypoints); or the environment's own picture. null: camera if the policy sees any, else
    environment."""

    def faults(self) -> Iterator[str]:
        room = min(self.n_episodes, self.env.n_envs)
        if self.videos > room:
            yield (
                f"videos is {self.videos}, but only episodes that run side by side can be filmed, here {room}; "
                f"lower videos or raise env.n_envs"
            )
        alone = self.env.n_envs == 1 or self.n_episodes % self.env.n_envs == 1
        if self.shuffle and alone:
            yield (
                f"shuffle exchanges instructions between episodes that run side by side, but of {self.n_episodes} in "
                f"blocks of env.n_envs {self.env.n_envs} one runs alone; change n_episodes or env.n_envs"
            )

    def metric_names(self) -> list[str]:
        """What `run` will measure."""
        return [name for metric in self.metrics for name in metric.names({"name": [self.name]})]

    def task_faults(self, task: Any) -> Iterator[str]:
        """The chunk must hold the executed actions, the sampler fit, and what is shown or hidden exist."""
        room = task.horizon - task.n_obs_steps + 1
        if (self.n_action_steps or 1) > room:
            yield (
                f"n_action_steps is {self.n_action_steps}, but horizon {task.horizon} and n_obs_steps "
                f"{task.n_obs_steps} leave room for {room} actions"
            )
        elif fault := delay_fault(self.merge, self.delay, self.n_action_steps or task.n_action_steps, room):
            yield fault
        if self.sampler is not None:
            for fault in task.diffusion.sampler_faults(self.sampler):
                yield f"sampler does not fit task.diffusion.schedule: {fault}"
        if not isinstance(task, PolicyConfig):
            return
        if self.guidance_scale not in (None, 1) and not task.cond_dropout:
            yield (
                f"guidance_scale is {self.guidance_scale:g}, but task.cond_dropout drops no observation in training; "
                f"give each a probability there, for example 0.1"
            )
        trained = task.prefix.max_delay if task.prefix is not None else 0
        if isinstance(self.merge, Prefix) and self.delay > trained:
            yield f"merge is 'prefix' and delay {self.delay}, but task.prefix trains delays up to {trained}; raise it"
        for place, keys in (("relative_to", {task.relative_to}), ("arms", arm_keys(task.arms))):
            for key in sorted(keys & set(self.blind)):
                yield f"blind names {key!r}, which actions are relative to (task.{place}); remove it"
        seeing = [encoder for encoder in task.encoders.values() if isinstance(encoder, CameraEncoderConfig)]
        if self.show == "keypoints" and seeing and not any(map(_has_keypoints, seeing)):
            yield "show is 'keypoints', but no encoder is a resnet with pool 'spatial_softmax'; set it to 'camera'"

    def measured_models(self) -> tuple[str, ...]:
        """Names of the models that `run` needs."""
        return (self.model,)

    def trial(self) -> RolloutConfig:
        """Two episodes of a few steps, one of them filmed, for `--check`."""
        env = self.env.model_copy(update={"n_envs": 2, "max_steps": min(16, self.env.max_steps or 16)})
        changes = {"env": env, "n_episodes": 2, "videos": min(self.videos, 1)}
        return self.model_copy(update={**changes, "shuffle": []})  # two may be told the same

    def create(self, data: SplitData = None, output_dir: Path | None = None) -> RolloutEvaluator:
        """
        Args:
            data: has the `spec` that the environment must fit; None skips that check.
            output_dir: where reports, videos and pictures go; None for nowhere.

        Raises:
            ImportError: the environment, or what films it, is not installed.
            ConfigError: there is no such environment, it cannot be filmed, or it does not fit the policy.
        """
        is_filmed = self.videos > 0 and output_dir is not None
        if is_filmed:
            import_av()
            import_figure()
        try:
            env = self.env.model_copy(update={"n_envs": 1}).create()
            with contextlib.closing(env):
                if data is not None:
                    _check_fit(env, data.spec, self.env.type)
                    refuse_blinding(data.spec, self.blind)
                    refuse_shuffling(data.spec, self.shuffle)
                    Instructions(data.spec, self.instructions)
                    if self.show in ("camera", "keypoints") and not cameras(data.spec):
                        raise ValueError(f"show is {self.show!r}, but the policy sees no camera frames; set it to null")
                first, again = (env.reset([self.first_seed]) for _ in range(2))
                if any(
                    not np.array_equal(first[key], again[key], equal_nan=first[key].dtype.kind == "f") for key in first
                ):
                    log.warning(
                        "the environment of evaluator %r starts differently each time it is reset with seed %d, "
                        "so scores will not repeat; let it draw from self.np_random only", self.name, self.first_seed,
                    )  # fmt: skip
                if is_filmed and not self.shows_cameras(None if data is None else data.spec):
                    env.render([0])
        except ValueError as error:
            raise ConfigError(f"the environment of evaluator {self.name!r}", [str(error)]) from error
        return RolloutEvaluator(self, output_dir)

    def shows_cameras(self, spec: Spec | None) -> bool:
        """Whether films show what a policy of this spec sees, and not the environment's picture."""
        return bool(cameras(spec)) if self.show is None and spec else self.show in ("camera", "keypoints")


class RolloutEvaluator:
    """See `RolloutConfig`."""

    def __init__(self, config: RolloutConfig, output_dir: Path | None):
        self.config = config
        self.every = config.every
        self.output_dir = output_dir

    def run(self, models: dict[str, nn.Module], ranks: Ranks | None, progress: Progress) -> Measurement:
        """Run all episodes; a collective after each round of blocks when there are several ranks.

        Raises:
            ValueError: observations or actions of the environment do not fit the policy.
            RuntimeError: on every rank, when a block failed on one of them; a worker failed, or died.
        """
        config = self.config
        policy = pick_models(models, [config.model], config.name)[config.model]
        stem = None
        if self.output_dir is not None and rank_and_size(ranks)[0] == 0:
            stem = self.output_dir / f"{config.name}_{progress.global_step:08d}"
        env = self._open(policy, ranks)
        try:
            with evaluation_mode(policy):
                rows, film = self._run_episodes(env, policy, ranks, stem)
        finally:
            env.close()
        result = self._measurement(rows)
        if film is not None:
            result.media[f"{config.name}/video"] = film.path
            picture = film.path.with_suffix(".png")
            table = result.tables[f"{config.name}/by_seed"]
            draw_rollouts(picture, film.strips, table, self._headline(result.metrics))
            result.media[f"{config.name}/picture"] = picture
        if stem is not None:
            write_report(stem.with_suffix(".json"), config, progress, result)
        return result

    def _measurement(self, rows: np.ndarray) -> Measurement:
        """Metrics and tables of all episodes, see `_run_episodes`."""
        config = self.config
        if not np.isnan(rows[:, 2]).all():  # an environment that reports only success means that the rest failed
            rows[:, 2] = np.nan_to_num(rows[:, 2])
        scores, successes, steps = rows[:, 1], rows[:, 2], rows[:, 3]
        values = (
            *(*mean_and_deviation(scores), *mean_interval(scores)),
            *(successes.mean(), *share_interval(successes.sum(), len(successes))),
            *(len(scores), steps.mean()),
        )
        metrics = {name: float(value) for name, value in zip(config.metric_names(), values, strict=True)}
        table = [
            {
                "seed": config.first_seed + int(episode),
                "score": score,
                "success": None if math.isnan(success) else bool(success),
                "steps": int(steps),
            }
            for episode, score, success, steps in rows[:, :4].tolist()
        ]
        result = Measurement(metrics, tables={f"{config.name}/by_seed": table})
        if rows[:, 4:].any():
            texts = [by_instruction.decode(row) for row in rows[:, 4:]]
            for line, text in zip(table, texts, strict=True):
                line["instruction"] = text
            found = by_instruction.scores_by_instruction(texts, scores, successes)
            result.tables[f"{config.name}/by_instruction"] = found
        return result

    def _open(self, policy: Any, ranks: Ranks | None) -> VectorEnv:
        """The environment, in this process or divided among workers."""
        env, workers = self.config.env, self.config.workers
        if workers is None:
            is_slow = any(policy.spec.kind(key) == "image" for key in policy.spec.cond_shapes)
            share = cores() // rank_and_size(ranks)[1]
            workers = share if is_slow and share > 1 and is_divisible(env) else 0
        return Workers(env, min(workers, env.n_envs, self.config.n_episodes)) if workers else env.create()

    def _headline(self, metrics: dict[str, float]) -> str:
        """The result in one line."""
        name = self.config.name
        score, low, high, solved = (
            metrics[f"{name}/{kind}"] for kind in ("score", "score_ci_low", "score_ci_high", "success_rate")
        )
        share = "" if math.isnan(solved) else f", solved {solved:.0%}"
        return f"{name}: score {score:.3f}, 95 % CI {low:.3f} to {high:.3f}{share}"

    def _run_episodes(
        self, env: VectorEnv, policy: Any, ranks: Ranks | None, stem: Path | None
    ) -> tuple[np.ndarray, Film | None]:
        """(n_episodes, 4) of episode, score, success, steps, equal on all ranks; and the film, on rank 0.

        An environment with instructions adds columns, the characters of the episode's instruction.
        """
        config = self.config
        width = 4 + (by_instruction.CHARACTERS if () in env.obs_shapes.values() else 0)
        instructions = Instructions(policy.spec, config.instructions)
        film = Film(stem.with_suffix(".mp4"), config.videos, env.fps) if stem and config.videos else None

        def run(episodes: range) -> np.ndarray:
            try:
                return self._run_block(env, policy, instructions, episodes, film if 0 in episodes else None, ranks)
            except Exception as error:
                seeds = config.first_seed + episodes[0], config.first_seed + episodes[-1]
                error.add_note(f"in evaluator {config.name!r}, in an episode of the seeds {seeds[0]} to {seeds[1]}")
                raise

        return run_blocks(run, config.n_episodes, env.n_envs, width, ranks, config.name), film

    def _run_block(
        self,
        env: VectorEnv,
        policy: Any,
        instructions: Instructions,
        episodes: Sequence[int],
        film: Film | None,
        ranks: Ranks | None,
    ) -> np.ndarray:
        """(len(episodes), 4 or more) of episode, score, success, steps, see `_run_episodes`."""
        config = self.config
        _check_fit(env, policy.spec, config.env.type)
        refuse_blinding(policy.spec, config.blind)
        refuse_shuffling(policy.spec, config.shuffle)
        is_shown = film is not None and config.shows_cameras(policy.spec)
        view = CameraView(policy, keypoints=config.show == "keypoints") if is_shown else None

        def draw(rows: Sequence[int]) -> np.ndarray:
            return env.render(rows) if view is None else view(obs, rows)

        agent = VectorAgent(
            policy,
            n_action_steps=config.n_action_steps,
            seed=config.noise_seed,
            sampler=config.sampler,
            warm_start=config.warm_start,
            merge=config.merge,
            delay=config.delay,
            instructions=instructions,
            guidance_scale=config.guidance_scale,
        )
        agent.reset(episodes)
        n = len(episodes)
        first = env.reset([config.first_seed + episode for episode in episodes])
        obs = self._seen(first, policy)
        codes = [by_instruction.encode(values) for values in first.values() if values.dtype.kind == "U"][:1]
        rows = np.stack([np.array(episodes, dtype=np.float64), *np.zeros((3, n))], axis=1)
        broken = np.zeros(n, dtype=bool)
        done = np.zeros(n, dtype=bool)
        with film or Film(None, 0, env.fps) as film:
            film.add(draw, done, rows[:, 2])
            while not (done | broken).all():
                heartbeat(ranks)
                actions = agent.act(obs, active=~(done | broken))
                broken |= ~done & ~np.isfinite(actions).all(axis=1)
                # A row with NaN actions has no score; it gets finite actions until the block is over.
                seen, _, now_done, info = env.step(np.where(np.isfinite(actions), actions, 0.0))
                obs = self._seen(seen, policy)
                rows[~done, 3] += 1
                rows[:, 1], rows[:, 2] = info["score"], info["success"]
                done = now_done
                film.add(draw, done, info["success"])
        rows[broken, 1] = np.nan
        rows[broken, 2] *= 0.0  # unknown stays unknown
        return np.concatenate([rows, *codes], axis=1)

    def _seen(self, obs: dict[str, np.ndarray], policy: Any) -> dict[str, np.ndarray]:
        """What the policy gets of the observations."""
        return blinded(shuffled(obs, self.config.shuffle, self.config.noise_seed), policy, self.config.blind)


def _has_keypoints(encoder: CameraEncoderConfig) -> bool:
    return isinstance(encoder, ResNetEncoderConfig) and encoder.pool == "spatial_softmax"


def _fits(found: tuple[int, ...] | None, wanted: tuple[int, ...], is_resized: bool, is_text: bool) -> bool:
    """Whether an environment's observation is what the policy reads; a camera of any size is, where it is resized, and
    a text, of shape (), is where one is embedded."""
    is_picture = is_resized and found is not None and len(found) == 3 and found[2] == wanted[2]
    return found == wanted or is_picture or (is_text and found == ())


def _check_fit(env: VectorEnv, spec: Spec, kind: str) -> None:
    """Raises ValueError unless observations and actions have the policy's keys and shapes."""
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
