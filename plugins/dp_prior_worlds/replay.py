"""ReplayConfig: the record of a replay of recorded actions, and the recorded starts that an environment needs."""

from __future__ import annotations

import contextlib
import math
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from dp_prior.checkpoints.clock import Cadence
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.recorded.selection import ActionConfig
from dp_prior.data.split_data import SplitData
from dp_prior.envs import EnvConfig
from dp_prior.envs.vector import SEED, VectorEnv, reset_to, start_keys
from dp_prior.evaluation.episode_metrics import EPISODES, SCORE, SCORE_INTERVAL, SUCCESS
from dp_prior.evaluation.measurement import EvaluatorName, EvaluatorRecord
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.tracking.metric_names import Metric
from dp_prior_worlds.replay_evaluator import Replayable, ReplayEvaluator
from dp_prior_worlds.whole_episodes import EXECUTED, WholeEpisodes

Keys = str | Annotated[tuple[str, ...], Field(min_length=1)]


class ReplayConfig(EvaluatorRecord):
    """The ceiling of imitation: the score of the recorded actions, played from the recorded starts.

    No policy acts, so the result is the same whenever it is measured; plan and `--check` measure before training, and
    warn below a success rate of 95 %. The report has for each episode the first step at which an observation departs
    from the recording, and by how much.
    """

    type: Literal["replay"] = "replay"

    tasks: ClassVar = ("policy",)

    metrics: ClassVar = (
        *(SCORE, *SCORE_INTERVAL, *SUCCESS),
        Metric("<name>/followed", "share", "higher", "Share of replays that never depart from their recording."),
        EPISODES,
    )

    name: EvaluatorName = "replay"
    """First part of the names of metrics, for example `replay/success_rate`, and of files."""

    every: Cadence = Cadence(epochs=50)
    """How often to report, besides before training and at the end. The episodes are played once."""

    env: EnvConfig
    """The environment."""

    data_set: str | None = None
    """Name of the data set to replay, of several (`data.sets`)."""

    start: dict[str, Keys] | None = None
    """What determines the start of an episode, by the environment's name, and its key in the data set, or several keys
    to join: observations such as `state`; `seed`, of which there may be one per episode; for `gym` also the `options`
    of its `reset`. null: keys of the names that the environment needs, else `seed`."""

    action: ActionConfig | None = None
    """The executed actions. null: the key `executed`, or without it the actions to learn (`data.action`)."""

    n_episodes: int = Field(default=50, ge=1)
    """Episodes to replay, evenly spread over the data; all if there are fewer."""

    tolerance: float = Field(default=0.01, gt=0)
    """Difference from the recording from which on an observation departs, as a share of the recorded range of each
    number."""

    def measured_models(self) -> tuple[str, ...]:
        """None: no policy acts."""
        return ()

    @property
    def keys(self) -> set[str]:
        """Keys of starts and executed actions to read from data sets that have them, beside the keys of a policy."""
        starts = [(SEED,)] if self.start is None else self.start.values()
        actions = (EXECUTED,) if self.action is None else self.action.stored_keys
        return {*actions, *chain.from_iterable((keys,) if isinstance(keys, str) else keys for keys in starts)}

    @property
    def score_range(self) -> tuple[float, float]:
        """See `RolloutConfig`."""
        return self.env.score_range

    def trial(self) -> Self:
        """All of it: `--check` tells the ceiling before training."""
        return self

    def create(self, data: SplitData, output_dir: Path | None = None) -> ReplayEvaluator:
        """
        Args:
            data: recorded episodes, one data set or several.
            output_dir: where reports go; None for nowhere.

        Raises:
            DataError: the samples are of no recorded episodes.
            ImportError: a package of the environment is not installed.
            ConfigError: the environment does not exist, cannot be put into the recorded starts, or takes other actions.
        """
        if self.data_set is not None or data.sets:
            if self.data_set not in data.sets:
                finding = (
                    f"evaluator {self.name!r} replays data_set {self.data_set!r}; data.sets has {sorted(data.sets)}"
                )
                raise ConfigError("data", [finding])
            data = data.sets[self.data_set]
        if data.recorded is None:
            raise DataError(data.title, ["are no recorded episodes of one data set, which a replay needs"])
        return self.of(WholeEpisodes(data.recorded, self.action), output_dir)

    def of(self, episodes: WholeEpisodes, output_dir: Path | None = None) -> ReplayEvaluator:
        """The replay of some episodes; see `create`."""
        try:
            env = self.env.model_copy(update={"n_envs": 1}).create()
            with contextlib.closing(env):
                env.is_watched = False  # pictures are not compared
                replayable = self._replayable(env, episodes)
                reset_to(env, {name: values[:1] for name, values in replayable.starts.items()})
        except (ValueError, DataError) as error:
            where = f"the environment {self.env.type!r} of evaluator {self.name!r}"
            raise ConfigError(where, [str(error)]) from error
        return ReplayEvaluator(self, replayable, output_dir)

    def _replayable(self, env: VectorEnv, episodes: WholeEpisodes) -> Replayable:
        """The episodes to replay, checked against the environment."""
        if episodes.actions.shape[1:] != (env.action_dim,):
            finding = f"takes actions of {env.action_dim} numbers, but recorded are {episodes.actions.shape[1:]}"
            raise ValueError(f"{finding}; name the executed actions in `action`")
        starts = self._starts(env, episodes)
        arrays, shapes = {**starts, **episodes.obs}, env.obs_shapes
        compared = {key: values for key, values in arrays.items() if values.shape[1:] == shapes.get(key)}
        chosen = evenly_spread(len(episodes), self.n_episodes).tolist()
        rows = [episodes.rows(place) for place in chosen]
        first_rows = [places[0] for places in rows]
        obs: dict[str, list[np.ndarray]] = {}
        for key, values in compared.items():
            obs[key] = [values[places] for places in rows]
        return Replayable(
            numbers=episodes.numbers[chosen],
            starts={name: values[first_rows] for name, values in starts.items()},
            actions=[episodes.actions[places] for places in rows],
            obs=obs,
        )

    def _starts(self, env: VectorEnv, episodes: WholeEpisodes) -> dict[str, np.ndarray]:
        """(N, ...) what determines a start, by the environment's name."""
        starts = {}
        for name, keys in (self.start or self._usual_start(env, episodes)).items():
            names, is_own = (keys,) if isinstance(keys, str) else keys, self.start is None and name in episodes.obs
            values = episodes.obs[name] if is_own else episodes.column(names, f"start.{name}")
            shape = () if name == SEED else env.obs_shapes.get(name, values.shape[1:])
            if math.prod(values.shape[1:]) != math.prod(shape):
                raise ValueError(
                    f"begins at {name!r} of shape {shape}, but start.{name} holds {values.shape[1:]} a step"
                )
            starts[name] = values.reshape(-1, *shape)
        return starts

    def _usual_start(self, env: VectorEnv, episodes: WholeEpisodes) -> dict[str, Keys]:
        """Values that determine a start, and the keys of the same names."""
        needed, data_keys = start_keys(env), {*episodes.obs, *episodes.keys}
        if data_keys.issuperset(needed):
            return {name: name for name in needed}
        if SEED in data_keys:
            return {SEED: SEED}
        listed = " and ".join(map(repr, dict.fromkeys([*needed, SEED])))
        raise ValueError(
            f"begins where {listed} says, but the data set has only {sorted(data_keys)}; name in `start` the keys that "
            f'hold it, such as "start": {{"{needed[0]}": "KEY"}}'
        )
