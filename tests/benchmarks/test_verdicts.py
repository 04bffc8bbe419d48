"""The test of `compare` on pairs whose difference is known: what is recorded keeps the stated error."""

import json

import numpy as np
import pytest

from benchmarks.results import RECORDS
from benchmarks.study.results import Results
from benchmarks.training import ROOT
from benchmarks.verdicts import COMPARED, PAIRS, RECORD, RULES, fixed_verdict, pairs, repetition, row

RECORDED = json.loads((ROOT / RECORDS).read_text(encoding="utf-8"))[RECORD]


def test_the_recorded_pairs_are_those_of_the_study_and_wrong_no_more_often_than_stated():
    found = list(pairs(Results(ROOT / "docs/study.jsonl")))
    assert len(found) == len(PAIRS) == 10
    for (data, name, scores), one in zip(found, RECORDED["rows"], strict=True):
        assert scores.shape == (2, 1000) and (one["data"], one["pair"]) == (data, name)
        assert one["difference"] == pytest.approx((scores[0] - scores[1]).mean(), abs=5e-5)
        assert float(one[COMPARED].split(" / ")[1]) <= 100 * RULES.error


def test_a_repetition_stops_after_a_round_of_ten_and_a_verdict_has_its_side():
    random = np.random.default_rng(0)
    good, poor = (random.random(1000) < rate for rate in (0.9, 0.3))
    for scores, side in (((good, poor), 1), ((poor, good), -1)):
        verdict, starts, by_fixed = repetition(np.array(scores, float), random)
        assert verdict == by_fixed == side and starts % 10 == 0 and 0 < starts < RULES.most
    assert repetition(np.array([good, good], float), random) == (0, RULES.most, 0)
    told = row("data", "pair", np.array([poor, good], float), 5, random)
    assert told[COMPARED] == "100.0 / 0.0 / 0.0" and told["rollouts"] < 400 and told["difference"] < 0


def test_the_fixed_test_is_a_t_test():
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    for shift in np.linspace(-0.4, 0.4, 21):
        differences = random.normal(shift, 1.0, 60)
        known = stats.ttest_1samp(differences, 0.0)
        assert fixed_verdict(differences) == (np.sign(known.statistic) if known.pvalue < RULES.error else 0)
