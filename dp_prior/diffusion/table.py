"""The noise table: the levels of a schedule and the coefficients of steps between its timesteps.

Timestep 0 is the least noisy; timestep -1 stands for the clean sample, (alpha, sigma) = (1, 0), which is not a row of
the table. Tables are float64 and cache the coefficients of the steps that were requested.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


class NoiseTable:
    """Signal and noise level of T timesteps, the noise growing with every one.

    Attributes:
        alpha: (T,) float64, >= 0; only the last may be 0.
        sigma: (T,) float64, > 0.
        snr: (T,) float64 signal-to-noise ratio (alpha / sigma) squared.
        levels: (alpha, sigma) of every timestep as plain numbers, and at index -1 those of the clean sample.
        variance: alpha^2 + sigma^2, of x_t where the data are standard normal; like `levels`.
        half_log_snr: log(alpha / sigma) of every timestep, DPM-Solver's lambda; no signal at all counts as -30, or as 1
            less than the timestep before.
    """

    def __init__(self, alpha: Tensor, sigma: Tensor):
        """Raises: ValueError: the levels are not finite, or the noise does not grow with every timestep."""
        if not (torch.isfinite(alpha).all() and torch.isfinite(sigma).all() and (sigma > 0).all()):
            raise ValueError("a noise schedule needs finite alpha and sigma, and sigma above 0 at every timestep")
        self.alpha, self.sigma, self.snr = alpha, sigma, (alpha / sigma) ** 2
        rises = (self.snr.diff() >= 0).nonzero().flatten().tolist()
        if rises:
            raise ValueError(
                f"the signal-to-noise ratio must fall with every timestep, but it is {self.snr[rises[0]]:.3g} at "
                f"timestep {rises[0]} and {self.snr[rises[0] + 1]:.3g} at the next"
            )
        self.levels = [*zip(alpha.tolist(), sigma.tolist(), strict=True), (1.0, 0.0)]
        for step in (self.transition, self._weights, self.log_stds, self.multistep):
            setattr(self, step.__name__, functools.cache(step))

    @functools.cached_property
    def variance(self) -> list[float]:
        return [round(alpha**2 + sigma**2, 12) for alpha, sigma in self.levels]  # exactly 1 where it is kept

    @functools.cached_property
    def half_log_snr(self) -> list[float]:
        values = [math.log(alpha / sigma) for alpha, sigma in self.levels[:-1] if alpha]
        return values if self.alpha[-1] else [*values, min([-30.0, *(last - 1 for last in values[-1:])])]

    def __len__(self) -> int:
        return len(self.alpha)

    def __reduce__(self) -> tuple[type[NoiseTable], tuple[Tensor, Tensor]]:
        """Copies and pickles have a cache of their own, so that policies can be sent to other processes."""
        return type(self), (self.alpha, self.sigma)

    def transition(self, t: int, s: int, eta: float) -> tuple[float, float, float]:
        """(c_x, c_0, std) of the step x_s = c_x x_t + c_0 x_0 + std n from timestep t to s.

        eta 1 samples the posterior q(x_s | x_t, x_0) of a less noisy s, eta 0 follows the probability-flow ODE either
        way, as in DDIM (Song et al. 2021, equations 12 and 16). Holds on every table.
        """
        (alpha_t, sigma_t), (alpha_s, sigma_s) = self.levels[t], self.levels[s]
        fresh = eta**2 * (1 - (alpha_t * sigma_s / (alpha_s * sigma_t)) ** 2) if eta else 0.0  # share of new noise
        c_x = sigma_s / sigma_t * math.sqrt(1 - fresh)
        return c_x, alpha_s - c_x * alpha_t, sigma_s * math.sqrt(fresh)

    def step(self, x_t: Tensor, x_0: Tensor, t: int, s: int, eta: float) -> tuple[Tensor, float]:
        """c_x x_t + c_0 x_0 of `transition`, in new memory, and the std of the noise still to be added."""
        c_x, c_0, std = self._weights(t, s, eta, x_t.dtype)
        return torch.mul(x_t, c_x).add_(x_0, alpha=c_0), std

    def _weights(self, t: int, s: int, eta: float, dtype: torch.dtype) -> tuple[Tensor, float, float]:
        """`transition`, with c_x as a tensor, by which torch multiplies in half the time that a number takes."""
        c_x, c_0, std = self.transition(t, s, eta)
        with torch.inference_mode(False):  # the cached tensor outlives the mode of its first caller
            return torch.tensor(c_x, dtype=dtype, device="cpu"), c_0, std

    def log_stds(self, t: int, s: int) -> tuple[float, float]:
        """Logarithms of the least and the largest sensible std of the step from t to a less noisy s.

        The least is the std of q(x_s | x_t, x_0), the largest the std of q(x_s | x_t) for standard normal data. The
        latter is the std of q(x_t | x_s), beta for neighbours, where alpha^2 + sigma^2 is 1.
        """
        (alpha_t, sigma_t), (alpha_s, sigma_s) = self.levels[t], self.levels[s]
        forward = math.log(sigma_t**2 - (alpha_t / alpha_s * sigma_s) ** 2) / 2
        narrowing = math.log(self.variance[s] / self.variance[t]) / 2
        return math.log(self.transition(t, s, 1.0)[2]), forward + narrowing

    def multistep(self, t: int, s: int, nodes: tuple[int, ...]) -> tuple[float, ...]:
        """(c_x, w_1, ...) of the step x_s = c_x x_t + w_1 x_0(node_1) + ... along the probability-flow ODE.

        Integrates the polynomial in log(alpha / sigma) through the estimates of x_0 at the nodes exactly; as many nodes
        as the order of the local error. With the one node t this is `transition` with eta 0.

        Source: Zhao et al. 2023 (arXiv:2302.04867), UniPC with varying coefficients.
        """
        (_, sigma_t), (alpha_s, sigma_s) = self.levels[t], self.levels[s]
        start = self.half_log_snr[t]
        length = math.inf if s == -1 else self.half_log_snr[s] - start
        integrals = [1 - math.exp(-length)]
        for power in range(1, len(nodes)):
            integrals.append(1 - power / length * integrals[-1])
        places = [(self.half_log_snr[node] - start) / length for node in nodes]
        weights = []
        for place in places:
            basis = [1.0]  # Lagrange's polynomial that is 1 here and 0 at the other places, lowest power first
            for other in places:
                if other != place:
                    shifted = zip([0.0, *basis], [*basis, 0.0], strict=True)
                    basis = [(up - other * same) / (place - other) for up, same in shifted]
            weights.append(alpha_s * sum(c * integral for c, integral in zip(basis, integrals, strict=True)))
        return sigma_s / sigma_t, *weights

    def reverse_steps(self) -> tuple[Tensor, Tensor, Tensor]:
        """(T,) c_0, and logarithms of the least and largest std, of the step from each timestep to the timestep before.

        The step to the clean sample has a point for posterior; it takes the least std of the step before (IDDPM).
        """
        alpha_t, sigma_t, alpha_s, sigma_s = self.alpha[1:], self.sigma[1:], self.alpha[:-1], self.sigma[:-1]
        fresh = 1 - (alpha_t * sigma_s / (alpha_s * sigma_t)) ** 2  # as in `transition` and `log_stds`
        c_0 = alpha_s - sigma_s / sigma_t * (1 - fresh).sqrt() * alpha_t
        least = (sigma_s * fresh.sqrt()).log()
        forward = (sigma_t**2 - (alpha_t / alpha_s * sigma_s) ** 2).log() / 2
        first = self.sigma[:1].log()
        least_first = least[:1] if len(least) else first
        variance = torch.tensor(self.variance, dtype=torch.float64)
        largest = torch.cat([first, forward]) + (variance.roll(1)[:-1] / variance[:-1]).log() / 2
        return torch.cat([torch.ones_like(first), c_0]), torch.cat([least_first, least]), largest
