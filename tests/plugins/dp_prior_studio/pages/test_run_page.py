"""The page of one run: its numbers are those of the run."""

import base64
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dp_prior.evaluation.grid import grid
from dp_prior_studio.pages.comparison import comparison_page
from dp_prior_studio.pages.evaluation_report import EvaluationReport
from dp_prior_studio.pages.run_page import (
    _in_words,
    headlines,
    measured,
    points,
    run_page,
    short,
    timed,
    unit_of_time,
)
from dp_prior_studio.pages.story import Story
from tests.messages import told, told_each
from tests.plugins.dp_prior_studio.pages.test_comparison import story_of


def story(rows=(), **parts):
    return Story(Path("run"), "run", rows=list(rows), **parts)


def row(step, rate=None, **metrics):
    speed = {} if rate is None else {"train/samples_per_second": rate}
    return {"step": step, "samples_seen": 8 * step, **speed, **metrics}


def test_hours_add_up_the_samples_of_each_row_at_its_speed():
    rows = timed(story([row(1, 2.0), row(2), row(4, 4.0), row(5, 0.0), row(6, 8.0)]))
    seconds = [8 / 2, 4, 4 + 24 / 4, 10, 10 + 16 / 8]
    assert [one["hours"] for one in rows] == pytest.approx([s / 3600 for s in seconds])
    assert all(one.items() >= given.items() for one, given in zip(rows, story().rows, strict=False))


def test_a_speed_next_to_zero_ends_the_hours_and_not_the_page():
    slow = story([row(1, 2.0, **{"train/loss": 1.0}), *(row(step, 5e-324, **{"train/loss": 1.0}) for step in (2, 3))])
    assert [one["hours"] for one in timed(slow)] == [4 / 3600, None, None]
    for pages in (run_page(slow, Path("p")), comparison_page([slow, slow])):
        assert [title for title, _ in pages.sections if "time" in title]


def test_points_are_the_rows_that_have_a_value():
    x, y = points([row(1, a=0.5), row(2, a=None), row(3), row(4, a=2)], "samples_seen", "a")
    np.testing.assert_array_equal([x, y], [[8, 32], [0.5, 2]])
    assert [part.shape for part in points([], "samples_seen", "a")] == [(0,), (0,)]


def test_headlines_are_the_test_and_before_it_the_newest_scores_of_the_main_evaluator():
    logged = [row(1, **{"rollout/score": 0.25}), row(2, **{"rollout/score": 0.5, "other/score": 0.75}), row(3, a=1)]
    assert headlines(story(logged)) == [("rollout: score", "0.500", ""), ("other: score", "0.750", "")]
    test = {"test/score": 0.625, "test/score_ci_low": 0.5, "test/score_ci_high": 0.75, "test/success_rate": 0.5}
    found = headlines(story(logged, result={"test": test}))
    assert found == [("test: score", "0.625", "0.500 to 0.750"), ("test: solved", "50%", "")]
    assert headlines(story()) == []


def test_a_replay_comes_after_the_policy_and_its_episodes_are_a_table():
    line = {"episode": 7, "score": 1.0, "departs_in": None}
    tables = {"replay/by_episode": [line] * 2}
    report = EvaluationReport(Path("media/replay_00000002.json"), "replay", 2, 16, {}, tables)
    tested = story(
        [row(2)],
        result={"test": {"replay/score": 1.0, "test/score": 0.2}},
        settings={"test.0.type": "replay", "test.0.name": "replay"},
        reports=[report],
    )
    assert headlines(tested) == [("test: score", "0.200", ""), ("replay: score", "1.000", "")]
    page = run_page(tested, Path("report.html"))
    assert ("replay/by_episode, step 2", ("episode", "score", "departs in"), [("7", "1", "")] * 2) in page.tables
    assert not [title for title, _ in page.sections if title == "Errors by place"]


def test_the_page_says_how_far_the_run_came_and_what_to_do_next():
    page = run_page(story_of("a b", ("rollout", 50, (0.25, 0.75)), seed=3), Path("a b/report.html"))
    assert (page.title, page.state) == ("a b", "stopped")
    assert page.facts["samples"] == "400" and page.facts["steps"] == "50"
    assert page.commands[0] == "dp-prior evaluate 'a b'" and "load_policy('a b')" in page.commands[1]
    settings = {title: rows for title, _, rows in page.details}
    assert settings["All settings"] == [("seed", "3")]


def test_results_come_before_settings_and_the_last_process_says_how_long_it_lasted():
    ending = {"started": "2026-01-01T01:00:30+01:00", "ended": "2026-01-01T01:02:33+00:00"}
    tested = story([row(2)], result={"test": {"test/score": 0.5}}, ending=ending)
    page = run_page(tested, Path("report.html"))
    assert page.facts["lasted"] == "1:02:03" and page.facts["last start"] == "2026-01-01 00:00 UTC"
    titles = [title for title, _, _ in page.tables]
    assert told_each(titles[1:], ("Test", "best weights"), ("Settings", "defaults"))


def test_films_beyond_their_room_are_links(tmp_path, monkeypatch):
    monkeypatch.setattr("dp_prior_studio.pages.run_page.LARGEST_FILMS", 15)
    one = story_of("a", ("rollout", 1, (0.5,)), ("rollout", 2, (0.5,)))
    reports = []
    for report in one.reports:
        path = tmp_path / "media" / report.path.name
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".mp4").write_bytes(bytes(10))
        reports.append(type(report)(path, *list(vars(report).values())[1:]))
    page = run_page(Story(tmp_path, "a", rows=one.rows, reports=reports), tmp_path / "report.html")
    assert [film["source"] is None for film in page.films] == [False, True]
    assert [film["file"] for film in page.films] == ["media/rollout_2.mp4", "media/rollout_1.mp4"]


def test_pictures_beyond_their_room_are_a_gap_and_frames_are_named_by_their_moments(tmp_path, monkeypatch):
    pytest.importorskip("PIL", reason="NOT CHECKED: Pillow is not installed")
    monkeypatch.setattr("dp_prior_studio.pages.run_page.LARGEST_PICTURES", 25)
    for name in ("ema", "online", "slow"):
        (tmp_path / f"error_9_{name}.png").write_bytes(name.encode().ljust(10))
    moments = {"error/moments": [{"episode": 4, "step": 2}, {"episode": 7, "step": 0}]}
    report = EvaluationReport(tmp_path / "error_9.json", "error", 9, 72, {"type": "error"}, moments)
    frames = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3), dtype=np.uint8)
    page = run_page(story(reports=[report], frames={"error": frames}), tmp_path / "elsewhere" / "page.html")
    (of_frames, cameras), *shown = page.strips
    assert told(of_frames, "error", "episode 4, step 2; episode 7, step 0")
    picture = Image.open(io.BytesIO(base64.b64decode(cameras.removeprefix("data:image/png;base64,"))))
    assert np.array_equal(picture, grid(frames, 2))
    assert [base64.b64decode(source.partition(",")[2]).strip() for _, source in shown] == [b"ema", b"online"]
    assert told("\n".join(page.gaps), "error_9_slow.png", "25 bytes")


def test_a_page_says_what_it_leaves_out(tmp_path, monkeypatch):
    for bound in ("MOST_FILMS", "MOST_BARS", "MOST_LISTED"):
        monkeypatch.setattr(f"dp_prior_studio.pages.run_page.{bound}", 2)
    run = story_of("a", *(("rollout", step, (0.25, 0.5, 0.75)) for step in (1, 2, 3)))
    reports = [dataclasses.replace(one, path=tmp_path / one.path.name) for one in run.reports]
    for report in reports:
        report.path.with_suffix(".mp4").write_bytes(b"film")
    reports[-1].tables["rollout/motion"] = [{"signal": name, "distance": 1.0} for name in "abc"]
    errors = EvaluationReport(
        tmp_path / "e_3.json", "e", 3, 24, {}, {"e/by_index": [{"index": place, "mse": 1.0} for place in range(3)]}
    )
    told_of = dataclasses.replace(run, reports=[*reports, errors], settings=dict.fromkeys("xyz", 1), changed={})
    events = [{"event": "error", "step": step, "message": f"trouble {step}"} for step in range(3)]
    page = run_page(dataclasses.replace(told_of, state="finished", events=events), tmp_path / "page.html")
    shown = (
        "films",
        "rollout, the scores",
        "chunk",
        "what happened",
        "rollout/motion",
        "settings",
    )
    assert told_each(page.gaps, *((what, "2 of 3") for what in shown)) and len(page.gaps) == len(shown)
    happened = next(rows for title, _, rows in page.tables if title == "What happened")
    assert [message for _, message in happened] == ["trouble 1", "trouble 2"], "the newest"


@pytest.mark.parametrize(
    ("state", "ending", "parts"),
    [
        ("killed", {"pid": 71, "message": "the run is in progress, or was killed"}, ("process 71", "killed")),
        ("stopped", {"stopped_by": "SIGTERM", "message": "8 samples in 1 steps"}, ("SIGTERM", "8 samples in 1 steps")),
        ("failed", {"message": "OSError: no room"}, ("OSError: no room",)),
    ],
)
def test_a_run_that_did_not_finish_says_why(state, ending, parts):
    page = run_page(story(state=state, ending=ending), Path("p"))
    [(title, _, happened)] = [table for table in page.tables if table[2]]
    assert title in page.opened, "why a run ended is on the first screen"
    assert [step for step, _ in happened] == [0] and told(happened[0][1], *parts)
    assert "in progress" not in happened[0][1]


@pytest.mark.parametrize(("value", "shown"), [("a b", "a b"), (None, ""), (True, "true"), ([1, "機"], '[1, "機"]')])
def test_a_setting_is_one_line(value, shown):
    assert short(value) == shown


def test_the_number_that_selected_the_best_weights_is_a_headline():
    settings = {"train.monitor.metric": "validation/ema/loss", "train.monitor.mode": "min"}
    rows = [
        row(1, **{"validation/ema/loss": 0.5}),
        row(2, **{"validation/ema/loss": 0.25, "validation/ema/loss_q1": 9}),
    ]
    seen = story([*rows, row(3, **{"validation/ema/loss": 0.75, "train/loss": 1})], settings=settings)
    page = run_page(seen, Path("run/report.html"))
    [(heading, value, step)] = page.headline
    assert told(heading, "validation/ema/loss") and value == "0.25" and told(step, 2)
    assert page.summaries == [
        (
            "Measured during training",
            ("metric", "best weights, step 2", "newest"),
            [("validation/ema/loss", "0.25", "0.75")],
        )
    ]


def test_intervals_stay_within_what_a_score_can_be():
    toy = {"type": "rollout", "env": {"type": "toy"}}
    one = story_of("a", ("rollout", 50, (0.9, 1.0)))
    reports = [dataclasses.replace(report, settings=toy) for report in one.reports]
    rows = [row(50, **{"rollout/score": 0.95, "rollout/score_ci_low": 0.3, "rollout/score_ci_high": 1.6})]
    scored = dataclasses.replace(one, reports=reports, rows=rows)
    assert headlines(scored) == [("rollout: score", "0.950", "0.300 to 1.000")]
    assert measured(scored)[2] == [("rollout/score", "", "0.95 (0.3 to 1)")]


def test_a_run_with_parts_of_another_package_says_so():
    page = run_page(story(parts={"wavenet": "mine 1.0, module mine.net"}), Path("run/report.html"))
    assert page.facts["own parts"] == "wavenet (mine 1.0, module mine.net)"


def test_a_short_training_is_told_in_minutes():
    rate = {"train/samples_per_second": 8.0}
    for n_samples, unit, expected in ((8 * 60 * 30, "minutes", 30), (8 * 3600 * 2, "hours", 2)):
        rows = timed(story([{"step": 1, "samples_seen": n_samples, **rate}]))
        column, label = unit_of_time(rows)
        assert (column, label) == (unit, f"{unit} of training") and rows[-1][column] == pytest.approx(expected)


def test_a_metric_with_a_single_value_is_a_number_and_no_chart(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "dp_prior_studio.pages.run_page.learning_curves", lambda rows, x, label: drawn.append(rows) or []
    )
    rows = [row(1, **{"train/loss": 2.0}), row(2, **{"train/loss": 1.0, "rollout/score": 0.5})]
    page = run_page(story(rows), Path("run/report.html"))
    assert all("rollout/score" not in line and "samples_seen" in line for rows in drawn for line in rows)
    assert drawn[0][1]["train/loss"] == 1.0
    assert ("rollout/score", "", "0.5") in page.summaries[0][2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("action_error/ema/by_index[steps=4]", "action_error/ema, along the chunk, 4 sampling steps"),
        ("mine/by_room", "mine, by room"),
    ],
)
def test_tables_are_captioned_in_words(name, expected):
    assert _in_words(name) == expected
