"""RolloutConfig: the record of rollouts in an environment, checked for contradictions within itself, with the task and
with the data."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dp_prior.checkpoints.clock import Cadence
from dp_prior.config import errors_of, made
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.envs import EnvConfig
from dp_prior.envs.vector import VectorEnv, check_obs
from dp_prior.evaluation.episode_metrics import EPISODES, SCORE, SCORE_INTERVAL, SUCCESS
from dp_prior.evaluation.measurement import EvaluatorName, EvaluatorRecord
from dp_prior.evaluation.picture import import_figure
from dp_prior.inference.chunking import MergeConfig, Prefix, delay_fault
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.actions import arm_keys
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.pixels.video_files import import_av
from dp_prior.tracking.metric_names import Metric

if TYPE_CHECKING:
    from dp_prior.evaluation.rollout_evaluator import RolloutEvaluator
    from dp_prior.inference.instructions import Instructions

log = logging.getLogger(__name__)


class RolloutConfig(EvaluatorRecord):
    """Scores in an environment: mean, spread and 95 % confidence intervals over fixed seeds.

    Intervals are Student's t for the mean score, clipped to the scores that the environment can give, and Wilson's for
    the success rate. The report also has, for each episode, the steps until success and the stage reached, and tables:
    the posterior of the success rate and the time to success, distance and smoothness of actions and observations,
    failures by stage where the environment names stages, and scores by instruction where it gives instructions.
    """

    type: Literal["rollout"] = "rollout"

    tasks: ClassVar = ("policy",)

    metrics: ClassVar = (
        SCORE,
        Metric("<name>/score_std", "score", None, "Standard deviation of the score over episodes."),
        *SCORE_INTERVAL,
        *SUCCESS,
        EPISODES,
        Metric("<name>/episode_steps", "steps", "lower", "Mean length of an episode until solved or over."),
        Metric("<name>/worst_tenth", "score", "higher", "Mean score of the worst tenth of the episodes."),
    )

    name: EvaluatorName = "rollout"
    """First part of the names of metrics, for example `rollout/score`, and of files."""

    every: Cadence = Cadence(epochs=50)
    """How often to run, besides at the end."""

    env: EnvConfig
    """The environment."""

    workers: int | None = Field(default=None, ge=0)
    """Processes that step the environment, each a share of the parallel episodes; 0: this process only. null: for
    `pusht`, `pusht_goals`, `aloha`, `metaworld`, `robosuite` and `gym` with a policy that sees camera frames one
    process per core, shared among ranks; otherwise 0."""

    model: str = "ema"
    """Weights of the policy: the name of an average in `train.ema`, or `online` for the trained weights themselves."""

    n_episodes: int = Field(default=50, ge=2)
    """Number of episodes."""

    first_seed: int = Field(default=100_000, ge=0)
    """Seed of the first episode; each further episode adds 1. Avoid the seeds of demonstrations."""

    noise_seed: int = 0
    """Seed of the policy's noise, together with episode and step."""

    n_action_steps: int | None = Field(default=None, ge=1)
    """Actions executed before the next prediction; null for the policy's setting."""

    sampler: SamplerConfig | None = None
    """Replaces the policy's sampler; null keeps the policy's own."""

    guidance_scale: float | None = None
    """Replaces the scale of `task.diffusion.guidance`; null keeps the scale. Above 1 amplifies the observations."""

    warm_start: bool = False
    """Start every prediction but an episode's first from the unused rest of the last chunk, noised to the sampler's
    `renoise`; takes fewer steps."""

    delay: int = Field(default=0, ge=0)
    """Control steps between an observation and the first executed action of its chunk, as on a robot that acts while
    the chunk is predicted; 0 predicts in no time. The first chunk of an episode is waited for."""

    merge: MergeConfig | None = None
    """How a new chunk continues the unfinished chunk; required for a delay. null: naive, the robot jumps to the new
    chunk."""

    blind: list[str] = []
    """Observations hidden from the policy: frames become mid-grey, vectors their mean in training. A control: weights
    that use an observation must score worse without it."""

    shuffle: list[str] = []
    """Instructions taken from another episode, with another text. A control: a policy that follows instructions scores
    worse."""

    instructions: Path | None = None
    """Folder of embeddings by `dp-prior embed`, or of the model, for the environment's instructions; null: the model
    used in training."""

    videos: int = Field(default=4, ge=0)
    """The first N episodes are filmed, at most those that run side by side, in one video and as a picture; 0 for none.
    Where nothing can be drawn, a warning says so and the numbers alone are measured."""

    show: Literal["camera", "keypoints", "environment"] | None = None
    """Content of films. camera: the policy's camera frames, with its crop; keypoints: also the positions that a spatial
    softmax finds; environment: the environment's own picture. null: camera if the policy has one, else environment."""

    def faults(self) -> Iterator[str]:
        room = min(self.n_episodes, self.env.n_envs)
        if self.videos > max(room, type(self).model_fields["videos"].default):
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

    def task_faults(self, task: Any) -> Iterator[str]:
        """The chunk must hold the executed actions, the sampler must fit, shown and hidden observations must exist."""
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
        pools = {getattr(encoder, "pool", None) for encoder in task.encoders.values() if "image" in encoder.reads}
        if self.show == "keypoints" and pools and "spatial_softmax" not in pools:
            yield "show is 'keypoints', but no encoder is a resnet with pool 'spatial_softmax'; set it to 'camera'"

    def rollouts(self) -> RolloutConfig:
        return self

    @property
    def filmed(self) -> int:
        """Number of episodes that are filmed."""
        return min(self.videos, self.n_episodes, self.env.n_envs)

    def measured_models(self) -> tuple[str, ...]:
        """Names of the models that `run` needs."""
        return (self.model,)

    @property
    def score_range(self) -> tuple[float, float]:
        """The least and the greatest score that the environment can give, as far as it says so."""
        return self.env.score_range

    def trial(self) -> RolloutConfig:
        """Two episodes of a few steps, one filmed, for `--check`."""
        env = self.env.model_copy(update={"n_envs": 2, "max_steps": min(16, self.env.max_steps or 16)})
        changes = {"env": env, "n_episodes": 2, "videos": min(self.videos, 1)}
        return self.model_copy(update={**changes, "shuffle": []})  # two episodes may have the same instruction

    def create(self, data: SplitData = None, output_dir: Path | None = None) -> RolloutEvaluator:
        """
        Args:
            data: has the `spec` that the environment must fit; None skips this check.
            output_dir: where reports, videos and pictures go; None for nowhere.

        Raises:
            ImportError: a package of the environment is not installed.
            ConfigError: the environment does not exist, or does not fit the policy.
        """
        from dp_prior.evaluation.rollout_evaluator import RolloutEvaluator

        spec, can_film = None if data is None else data.spec, True
        instructions = None if spec is None else self._opened_instructions(spec)
        with errors_of(f"the environment of evaluator {self.name!r}"):
            single = self.env.model_copy(update={"n_envs": 1})
            env = made(single, "create", single.create(), VectorEnv, ("is_watched",))
            with contextlib.closing(env):
                if spec is not None:
                    self._check_policy(env, spec)
                first_obs = self._checked_start(env)
                if instructions is not None and any(values.dtype.kind == "U" for values in first_obs.values()):
                    with errors_of(f"instructions of evaluator {self.name!r}", FileNotFoundError):
                        instructions.check_located()
                if self.filmed > 0 and output_dir is not None:
                    can_film = self._can_film(env, spec)
        return RolloutEvaluator(self if can_film else self.model_copy(update={"videos": 0}), output_dir)

    def _opened_instructions(self, spec: Spec) -> Instructions | None:
        """Open the folder of the instructions; None for a policy that reads no text, without such a folder."""
        if not spec.texts and self.instructions is None:
            return None
        from dp_prior.inference.instructions import Instructions

        with errors_of(f"instructions of evaluator {self.name!r}", FileNotFoundError):
            return Instructions(spec, self.instructions)

    def _check_policy(self, env: VectorEnv, spec: Spec) -> None:
        """Raises ValueError unless a policy of this spec can act in the environment; warns of enlarged pictures."""
        from dp_prior.evaluation.rollouts import check_fit, enlarged

        check_fit(env, spec, self)
        for line in enlarged(env, spec):
            log.warning("evaluator %r: %s", self.name, line)
        if self.show in ("camera", "keypoints") and not spec.cameras:
            raise ValueError(f"show is {self.show!r}, but the policy sees no camera frames; set it to null")

    def _checked_start(self, env: VectorEnv) -> dict[str, np.ndarray]:
        """Reset the environment, check the observation, and warn if a second reset gives another one."""
        first, second = (env.reset([self.first_seed]) for _ in range(2))
        check_obs(first, env, 1)
        for key, values in first.items():
            if not np.array_equal(values, second[key], equal_nan=values.dtype.kind == "f"):
                log.warning(
                    "the environment of evaluator %r starts differently each time it is reset with seed %d, "
                    "so scores will not repeat; let it draw from self.np_random only", self.name, self.first_seed,
                )  # fmt: skip
                break
        return first

    def _can_film(self, env: VectorEnv, spec: Spec | None) -> bool:
        """Draw the film's first picture, unless the policy's cameras are filmed; warn if nothing can be drawn."""
        try:
            import_av()
            import_figure()
            if not self.shows_cameras(spec):
                env.render([0])
        except Exception as error:  # of a renderer, anything
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("evaluator %r makes no films, only numbers, as with videos 0: %s", self.name, reason)
            return False
        return True

    def shows_cameras(self, spec: Spec | None) -> bool:
        """Whether films show the camera frames of a policy of this spec, rather than the environment's picture."""
        return bool(spec.cameras) if self.show is None and spec else self.show in ("camera", "keypoints")
