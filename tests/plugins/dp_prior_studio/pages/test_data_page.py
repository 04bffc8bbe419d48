"""The page and the lines about data sets say what was found, the most severe first."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.tensors.normalizer import Limits
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.inspection import Inspection
from dp_prior_studio.inspection.survey import survey
from dp_prior_studio.pages.data_page import MOST_CURVES, summary, write_inspection
from tests.messages import told
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz
from tests.plugins.dp_prior_studio.pages.test_report import Outline


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    path = write_npz(tmp_path_factory.mktemp("recorded") / "d.npz", clean(n=5))
    return survey(NpzStoreConfig(path=str(path)).create())


def inspection(seen, name="a", findings=(), **more):
    data = {"action": {"key": "action"}}
    return Inspection(name, seen, data=data, findings=list(findings), normalizers={"action": Limits()}, **more)


FAULTS = [
    Finding("error", "state: a <fault>", 3, 7, code="jumps"),
    Finding("warning", "one", code="jumps"),
    Finding("warning", "two", code="jumps"),
]


def shown(path):
    return [text.strip() for text in Outline(path.read_text()).texts if text.strip()]


def test_the_lines_end_with_a_verdict_that_counts_the_findings(seen):
    assert summary([inspection(seen)])[-1] == "no findings"
    lines = summary([inspection(seen, findings=FAULTS)])
    assert lines[-1] == "1 error, 2 warnings"
    gaps = ["top: no readable picture"]  # then nothing is known of a part
    assert told(summary([inspection(seen, gaps=gaps)])[-1], "findings", "rest", "1 not shown")
    assert told(summary([inspection(seen, findings=FAULTS, gaps=gaps)])[-1], "1 error", "2 warnings", "1 not shown")
    assert summary([inspection(seen, findings=FAULTS), inspection(seen, "b", FAULTS[:1])])[-1] == "2 errors, 2 warnings"


def test_the_lines_count_episodes_steps_and_numbers(seen):
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in summary([inspection(seen)])}
    assert lines["episodes"] == "5" and lines["steps"] == f"{int(seen.lengths.sum()):,}"
    assert lines["observation"] == "state, 3 numbers" and lines["action"] == "action, 2 numbers"
    assert str(int(np.median(seen.lengths))) in lines["length"]


def test_a_rate_that_is_not_declared_is_proposed_by_the_timestamps(seen):
    (line,) = (line for line in summary([inspection(seen)]) if line.startswith("rate"))
    assert told(line, '"fps": 10', "--fps 10", "timestamps")  # data of one set have no such field
    (line,) = (line for line in summary([inspection(replace(seen, clock=None))]) if line.startswith("rate"))
    assert told(line, '"fps": 50')


def test_the_page_has_the_quantities_of_every_number_and_the_normalised_range_of_the_action(seen, tmp_path):
    texts = shown(write_inspection([inspection(seen)], tmp_path / "page.html", "title"))
    for signal in seen.of("observation", "action"):
        for value in (*signal.values.min(axis=0), *signal.values.max(axis=0)):
            assert f"{value:.4g}" in texts
    scale, offset = Limits().fit(seen.of("action")[0].statistics())
    statistics = seen.of("action")[0].statistics()
    low, high = ((end - offset) * scale for end in (statistics.q01, statistics.q99))
    assert f"{low[0]:.3g} to {high[0]:.3g}" in texts


def test_findings_are_on_the_page_with_their_place_and_escaped(seen, tmp_path):
    path = write_inspection([inspection(seen, findings=FAULTS)], tmp_path / "page.html", "title")
    texts = shown(path)
    place = texts.index("state: a <fault>")
    assert texts[place - 1 : place + 3] == ["error", "state: a <fault>", "3", "7"]
    assert "<fault>" not in re.sub(r"&lt;fault&gt;", "", path.read_text())


def test_names_in_any_script_are_on_the_page_as_they_are(seen, tmp_path):
    path = write_inspection([replace(inspection(seen), data={"path": "/данные"})], tmp_path / "page.html", "title")
    line = shown(path)[-1]
    assert json.loads("{" + line + "}") == {"data": {"path": "/данные"}} and "/данные" in line


def test_several_sets_are_one_page_whose_parts_name_their_set(seen, tmp_path):
    both = [inspection(seen, "one", FAULTS), inspection(seen, "other")]
    texts = shown(write_inspection(both, tmp_path / "page.html", "all sets"))
    assert "all sets" in texts and "one: two" in texts
    assert any(text.startswith("one: action") for text in texts) and any(
        text.startswith("other: action") for text in texts
    )
    single = shown(write_inspection(both[:1], tmp_path / "single.html", "one"))
    assert "two" in single


def test_the_numbers_of_a_few_episodes_are_drawn_over_time_with_their_ranges(tmp_path):
    looked = survey(NpzStoreConfig(path=str(write_npz(tmp_path / "d.npz", clean(n=9)))).create())
    html = write_inspection([inspection(looked)], tmp_path / "page.html", "a").read_text()
    episodes = re.findall(
        r'name="episode"(?: open)?><summary>episode (\d+), ([\d,]+) steps</summary>(.*?)</details>', html, re.S
    )
    assert [int(number) for number, *_ in episodes] == [0, 2, 3, 5, 6, 8]
    for number, steps, curves in episodes:
        span = looked.spans[int(number)]
        assert int(steps) == looked.lengths[int(number)] == span[2] - span[1]
        assert curves.count('class="curve"') == 5, "three of the state and two of the action"
    signal = looked.of("observation")[0]
    first = signal.values[: looked.lengths[0], 0]
    assert f"{first.min():.4g} to " in episodes[0][2] or len(first) > 100


def test_a_wide_key_names_the_numbers_that_are_not_drawn_over_time(tmp_path):
    state = np.random.default_rng(0).normal(size=(40, MOST_CURVES + 3))
    np.savez(tmp_path / "d.npz", state=state, action=state[:, :MOST_CURVES], episode_ends=[20, 40])
    looked = survey(NpzStoreConfig(path=str(tmp_path / "d.npz")).create())
    lines = shown(write_inspection([inspection(looked)], tmp_path / "page.html", "a"))
    (line,) = [text for text in lines if told(text, f"dimensions {MOST_CURVES} to {MOST_CURVES + 2}")]
    assert line.startswith("state:")
