"""Stepping environments that render: Push-T with frames of 96 x 96 beside gymnasium's own vector environments; and the
share of an evaluation that is the policy's own."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import gymnasium
import numpy as np
from gym_pusht.envs import PushTEnv

from benchmarks import image_policy
from benchmarks.measure import Case, Options, Timing, compare, per_second
from dp_prior.checkpoints.clock import Progress
from dp_prior.envs.workers import Workers, cores
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.tensors.normalizer import Statistics
from dp_prior_worlds.pusht import PushTConfig
from dp_prior_worlds.renderers.pusht import PushTRendererConfig

SIZE = (96, 96)


def run(options: Options) -> list[Case]:
    return [_frames(options), _steps(options), _evaluation(options)]


def _frames(options: Options) -> Case:
    """One frame of the same scene."""
    env, renderer = PushTEnv(obs_type="pixels"), PushTRendererConfig().create(SIZE)
    count = 10 if options.quick else 200
    state = env.reset(seed=0)[1]
    states = np.concatenate([state["pos_agent"], state["block_pose"]])[None].repeat(count, 0)
    variants = {
        "gym-pusht": lambda: [env.get_obs() for _ in range(count)],
        "dp_prior": lambda: renderer(states),
    }
    return Case("frame of Push-T, 96 x 96", "ms", compare(variants, options.times(9), scale=1e3 / count))


def _steps(options: Options) -> Case:
    """Steps with random actions; no prediction between them."""
    episodes, steps = (3, 3) if options.quick else (24, 20)
    actions = np.random.default_rng(0).uniform(0, 512, (steps, episodes, 2)).astype(np.float32)
    seeds = list(range(episodes))
    record = PushTConfig(n_envs=episodes, camera=SIZE)
    makers = [lambda: PushTEnv(obs_type="pixels_agent_pos")] * episodes
    workers = min(cores(), episodes)
    with contextlib.ExitStack() as stack:
        envs = {
            "gymnasium SyncVectorEnv": gymnasium.vector.SyncVectorEnv(makers),
            f"gymnasium AsyncVectorEnv, {episodes} processes": gymnasium.vector.AsyncVectorEnv(makers),
            "dp_prior, one process": record.create(),
            f"dp_prior, {workers} workers": Workers(record, workers),
        }
        for env in envs.values():
            stack.callback(env.close)

        def rollout(name: str) -> int:
            env = envs[name]
            if name.startswith("gymnasium"):
                env.reset(seed=seeds)
            else:
                env.reset(seeds)
            for action in actions:
                env.step(action)
            return actions.shape[0] * episodes

        variants = {name: lambda name=name: rollout(name) for name in envs}
        timings = per_second(variants, options.times(7))
    return Case("Push-T with frames of 96 x 96", "steps/s", timings, more_is_better=True)


def _evaluation(options: Options) -> Case:
    """An evaluation of the policy of configs/policy/pusht_image.json; the rest of its time is the environment's."""
    episodes, steps, overrides = (2, 16, ("task.sampler.steps=2",)) if options.quick else (24, 100, ())
    recipe = image_policy.record((32, 64, 128), overrides, "pusht_image")
    n_obs_steps, shapes = recipe.task.n_obs_steps, image_policy.SPEC.cond_shapes.items()
    present = {"cond_shapes": {key: (n_obs_steps, *shape[1:]) for key, shape in shapes}}
    policy = image_policy.policy(recipe, image_policy.SPEC.model_copy(update=present)).eval()
    positions = Statistics.of(np.array([[0.0, 0.0], [512.0, 512.0]]))
    policy.normalizer.fit({"x": positions, "agent_pos": positions})
    env = {"type": "pusht", "n_envs": episodes, "camera": SIZE, "max_steps": steps}
    record = RolloutConfig.model_validate({"env": env, "n_episodes": episodes, "first_seed": 0, "videos": 0})
    shares = {}
    for name, workers in (("in one process", 0), ("with workers", min(cores(), episodes))):
        evaluator = record.model_copy(update={"workers": workers}).create()
        shares[name] = Timing([_share(policy, evaluator) for _ in range(options.times(3))])
    note = f"{episodes} episodes of {steps} steps side by side, {policy.sampler.type}-{policy.sampler.steps}"
    return Case("share of the policy in an evaluation", "%", shares, note=note)


def _share(policy: Any, evaluator: Any) -> float:
    """Per cent of an evaluation that the policy takes, its start included."""
    draw, seconds = policy.draw, []

    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return draw(*arguments)
        finally:
            seconds.append(time.perf_counter() - begun)

    policy.draw = timed
    begun = time.perf_counter()
    try:
        evaluator.run({evaluator.config.model: policy}, None, Progress())
    finally:
        del policy.draw
    return 100 * sum(seconds) / (time.perf_counter() - begun)
