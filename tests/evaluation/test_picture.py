"""Pictures of rollouts: any scores, outcomes and shapes."""

import itertools

import numpy as np
import pytest

SCORES = [lambda i: i / 9, lambda i: np.nan if i % 2 else -1000.0 * i, lambda i: np.nan]
SUCCESSES = [lambda i: i > 5, lambda i: None]


@pytest.mark.parametrize(
    ("score", "success", "height", "n_stills"),
    [
        pytest.param(score, success, *shape, marks=[pytest.mark.slow] * (number not in (0, 6)))
        for number, (score, success, shape) in enumerate(itertools.product(SCORES, SUCCESSES, [(20, 8), (200, 1)]))
    ],
)
def test_picture_of_any_scores_outcomes_and_shapes(tmp_path, recwarn, score, success, height, n_stills):
    from dp_prior.evaluation.picture import draw_rollouts

    strips = [[(step, np.zeros((height, 60, 3), np.uint8)) for step in range(n_stills)]] * 2
    table = [{"seed": i, "score": score(i), "success": success(i), "steps": 9} for i in range(10)]
    draw_rollouts(tmp_path / "p.png", strips, table, "headline")
    told = [warning for warning in recwarn if issubclass(warning.category, UserWarning | RuntimeWarning)]
    assert (tmp_path / "p.png").stat().st_size > 5000 and not told  # a collected object may warn meanwhile, too
