"""The recorded actions, replayed in the environments of a configuration."""

from __future__ import annotations

from collections.abc import Iterator

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.run.config import TrainConfig
from dp_prior_studio.inspection.finding import Finding
from dp_prior_worlds.replay import ReplayConfig
from dp_prior_worlds.whole_episodes import WholeEpisodes

EPISODES = 20
"""Default number of episodes that are replayed."""


def replay_findings(config: TrainConfig, name: str, record: TrajectoriesConfig) -> Iterator[Finding]:
    """The ceiling of imitation in each environment, a warning if low; or why an environment is not replayed.

    Args:
        name: of the data set among those of the configuration.
        record: of the data set.
    """
    for replay in _replays(config, name):
        try:
            whole = WholeEpisodes(record.downloaded({}), replay.action)
            ceiling = replay.of(whole).ceiling()
        except (ConfigError, DataError) as error:
            yield Finding("note", f"not replayed: {error.source}: {'; '.join(error.problems)}", code="replay-skipped")
        except ImportError as error:
            yield Finding("note", f"not replayed: {error}", code="replay-skipped")
        else:
            yield Finding("warning" if ceiling.is_low else "note", str(ceiling), code="replay")


def replayed_keys(config: TrainConfig, name: str) -> set[str]:
    """The keys that the replay evaluators of a configuration read of a data set; see `replay_findings`."""
    replays = [replay for replay in (*config.evaluate, *config.test) if isinstance(replay, ReplayConfig)]
    return set().union(*(replay.keys for replay in replays if replay.data_set in (None, name)))


def _replays(config: TrainConfig, name: str) -> list[ReplayConfig]:
    """The evaluators that replay this data set; without one, an evaluator for each environment of a rollout."""
    evaluators = [*config.evaluate, *config.test]
    replays = [evaluator for evaluator in evaluators if isinstance(evaluator, ReplayConfig)]
    if replays:
        return [evaluator for evaluator in replays if evaluator.data_set in (None, name)]
    envs = {}
    for evaluator in evaluators:
        if (rollouts := evaluator.rollouts()) is not None:
            envs[rollouts.env.to_json()] = rollouts.env
    return [ReplayConfig(env=env, n_episodes=EPISODES) for env in envs.values()]
