"""Pictures of rollouts: any scores, outcomes and shapes."""

import numpy as np
import pytest


@pytest.mark.parametrize("score", [lambda i: i / 9, lambda i: np.nan if i % 2 else -1000.0 * i, lambda i: np.nan])
@pytest.mark.parametrize("success", [lambda i: i > 5, lambda i: None])
@pytest.mark.parametrize(("height", "n_stills"), [(20, 8), pytest.param(200, 1, marks=pytest.mark.slow)])
def test_picture_of_any_scores_outcomes_and_shapes(tmp_path, recwarn, score, success, height, n_stills):
    from dp_prior.evaluation.picture import draw_rollouts

    strips = [[(step, np.zeros((height, 60, 3), np.uint8)) for step in range(n_stills)]] * 2
    table = [{"seed": i, "score": score(i), "success": success(i), "steps": 9} for i in range(10)]
    draw_rollouts(tmp_path / "p.png", strips, table, "headline")
    told = [warning for warning in recwarn if issubclass(warning.category, UserWarning | RuntimeWarning)]
    assert (tmp_path / "p.png").stat().st_size > 5000 and not told  # a collected object may warn meanwhile, too
