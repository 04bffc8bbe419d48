"""Measures how far the actions of an export differ from those of the policy that was exported."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import torch

from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.inference.export import numpy_randomness
from dp_prior.inference.export.example_rows import observations
from dp_prior.inference.export.exported_policy import ExportedPolicy
from dp_prior.inference.export.graph_options import GraphOptions, Precision
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.observations import check_obs
from dp_prior.tensors.randomness import Randomness

LARGEST_ERROR: dict[Precision, float] = {"fp32": 1e-3, "fp16": 2e-2}
"""Normalised units, by precision. Rounding errors are 100 times smaller, in half precision 10 times; a part that draws
random numbers, that torch traced wrongly, or whose numbers overflow, errs far more."""
SEEDS, BATCHES = (0, 1), (1, 3)
LIBRARIES = ("dp_prior", "torch", "numpy", "onnx", "onnxscript", "onnxruntime")


def parity(
    policy: DiffusionPolicy,
    computed: DiffusionPolicy,
    exported: ExportedPolicy,
    sampler: SamplerConfig,
    options: GraphOptions,
) -> dict[str, Any]:
    """The largest difference of actions by batch size and seed, in normalised and in data units.

    Args:
        computed: the policy in the precision of the graphs. A policy in half precision is compared as well, since
            onnxruntime on a CPU computes many nodes in float32, where nothing overflows.
    """
    scale = policy.normalizer.get_buffer("x/scale")
    cases = []
    for rows in BATCHES if options.batch is None else (options.batch,):
        for seed in SEEDS:
            obs = observations(policy, seed, rows, options.frames)
            arrays = {key: value.numpy() for key, value in obs.items()}
            obs = check_obs(obs, policy.spec, rows=rows, steps=(policy.n_obs_steps,))
            previous = None
            for _ in ("cold", "warm") if options.unroll else ("cold",):
                random = Randomness.from_counts(seed, "parity", torch.arange(rows))
                noise = numpy_randomness.NumpyRandomness.from_counts(seed, "parity", range(rows))
                expected = policy.predict(obs, random, sampler, previous=previous)
                given = None if previous is None else previous.numpy()
                others = [torch.from_numpy(exported.predict(arrays, noise, previous=given))]
                if computed is not policy:
                    others.append(computed.predict(obs, random, sampler, previous=previous))
                # transformed, since a rotation has two signs
                differences = [(policy.encode_x(expected, obs) - policy.encode_x(one, obs)).abs() for one in others]
                worst = torch.stack(differences).amax(dim=0)  # NaN if one is NaN
                found = {"error": float((worst * scale).max()), "error_in_data_units": float(worst.max())}
                cases.append({"rows": rows, "seed": seed, **found})
                previous = expected
    versions = {}
    for library in LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            versions[library] = None
    return {"largest_error": float(np.max([case["error"] for case in cases])), "cases": cases, "versions": versions}


def disparity(error: float, precision: Precision) -> str:
    """Why an export that errs so much is refused; empty for rounding errors."""
    if error <= LARGEST_ERROR[precision]:  # NaN is no parity either
        return ""
    differs = f"the exported policy differs by {error:.2g} in normalised units"
    if precision == "fp16":
        return (
            f"{differs} in fp16, and at most {LARGEST_ERROR['fp16']:g} is taken: numbers inside the network exceed "
            f"65504 or lose their digits; use --precision fp32"
        )
    return (
        f"{differs}, and rounding explains {LARGEST_ERROR['fp32']:g}: a part draws numbers of its own, or torch traced "
        f"it wrongly"
    )
