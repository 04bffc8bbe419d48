"""Runs side by side: paired by seed, folded over seeds, and their differing settings."""

import dataclasses
from pathlib import Path

import numpy as np

from dp_prior_studio.pages.comparison import comparison_page
from dp_prior_studio.pages.evaluation_report import EvaluationReport
from dp_prior_studio.pages.ranking import ranking
from dp_prior_studio.pages.story import Story
from tests.extras import needs
from tests.messages import told, told_each

needs("matplotlib", "plots")


def monitored(name, values, mode="min", metric="action_error/ema/lower_quartile[steps=8]", **settings):
    """A run on recorded data, which measured one metric every 50 steps."""
    rows = [
        {"step": 50 * number, "samples_seen": 400 * number, "train/loss": 1.0, metric: value}
        for number, value in enumerate(values, 1)
    ]
    settings |= {"train.monitor.metric": metric, "train.monitor.mode": mode, "name": name}
    return Story(Path(name), name, "finished", settings=settings, rows=rows)


def story_of(name, *reports, **settings):
    """A run without tests, with rollouts of (evaluator, step, scores)."""
    found = []
    for evaluator, step, scores in reports:
        rows = [{"seed": seed, "score": score, "success": None, "steps": 5} for seed, score in enumerate(scores)]
        path = Path(f"media/{evaluator}_{step}.json")
        found.append(EvaluationReport(path, evaluator, step, 8 * step, {}, {f"{evaluator}/by_seed": rows}))
    found.sort(key=lambda report: (report.step, report.name))
    logged = [
        {"step": one.step, "samples_seen": one.samples, f"{one.name}/score": one.episodes[0]["score"]} for one in found
    ]
    return Story(Path(name), name, "stopped", settings=settings, rows=logged, reports=found)


def test_a_control_that_ran_later_or_last_does_not_count():
    low, high = (0.2, 0.2, 0.2), (0.9, 0.9, 0.9)
    run = story_of(
        "a", ("rollout", 50, low), ("rollout_blind", 100, low), ("rollout", 100, low), ("rollout", 150, high)
    )
    late = story_of("b", ("rollout", 50, high), ("rollout_blind", 50, low), ("rollout_blind", 100, low))
    chosen = story_of("c", ("a", 50, low), ("b", 50, high), **{"train.monitor.metric": "b/score"})
    assert [(one.tested.name, one.tested.step) for one in (run, late, chosen)] == [
        ("rollout", 150), ("rollout", 50), ("b", 50),
    ]  # fmt: skip
    summaries = {title: rows for title, _, rows in comparison_page([late, run, chosen]).summaries}
    assert [row[3] for row in summaries["Runs"]] == ["0.900 ()", "0.900 ()", "0.900 ()"]
    assert summaries["Paired by episode"] == [("a", "b", "rollout/score", "3", "+0.000 (+0.000 to +0.000)")]


def test_scores_of_different_environments_are_not_paired():
    """A simulator's new version moves objects, cameras and contacts: the same seed is another start."""

    def run_in(name, version):
        run = story_of(name, ("rollout", 1, (0.2, 0.4, 0.3)))
        world = None if version is None else {"packages": {"mujoco": version}, "seed": 0, "start": "a"}
        return dataclasses.replace(run, reports=[dataclasses.replace(one, environment=world) for one in run.reports])

    runs = [run_in(name, version) for name, version in {"a": "3.3.0", "b": "3.3.0", "c": "3.4.0", "d": None}.items()]
    [paired] = [rows for title, _, rows in comparison_page(runs).summaries if title == "Paired by episode"]
    pairs = {row[0]: row[-1] for row in paired}
    assert pairs["b"] == pairs["d"] == "+0.000 (+0.000 to +0.000)"  # an older version has not noted it
    assert "mujoco 3.3.0 against 3.4.0" in pairs["c"] and "+0" not in pairs["c"]


def test_environments_are_told_apart_by_what_both_runs_noted_of_them():
    """Runs of older versions have no fingerprint; the number of rows side by side is no other environment."""

    def run_in(name, **env):
        run = story_of(name, ("rollout", 1, (0.2, 0.4, 0.3)))
        reports = [dataclasses.replace(one, settings={"env": env}) for one in run.reports]
        return dataclasses.replace(run, reports=reports)

    runs = [run_in("a", type="pusht", n_envs=25, max_steps=300), run_in("b", type="pusht", n_envs=5, camera=None)]
    runs += [run_in("c", type="toy"), run_in("d", type="pusht", max_steps=200), run_in("e")]
    [paired] = [rows for title, _, rows in comparison_page(runs).summaries if title == "Paired by episode"]
    pairs = {row[0]: row[-1] for row in paired}
    assert pairs["b"] == pairs["e"] == "+0.000 (+0.000 to +0.000)"
    assert told(pairs["c"], "env.type", "pusht", "toy") and told(pairs["d"], "env.max_steps", 300, 200)
    assert "+0" not in pairs["c"] + pairs["d"]


def test_a_mean_without_the_episodes_that_failed_is_no_mean():
    runs = [story_of(f"a{seed}", ("rollout", 1, (0.6, 0.6, 0.5 + seed)), seed=seed, lr=1) for seed in range(2)]
    runs += [story_of(f"b{seed}", ("rollout", 1, (0.9, 0.9, None)), seed=seed, lr=2) for seed in range(2)]
    summaries = {columns: rows for _, columns, rows in comparison_page(runs).summaries}
    whole, broken = summaries["configuration", "seeds", "metric", "mean"]
    assert whole[3].startswith("0.7333 (") and told(broken[3], "none", 2, "runs", "score")
    paired = summaries["run", "against", "metric", "episodes", "difference"]
    assert told_each([row[-1] for row in paired][1:], *[("none", 1, "episodes", "score")] * 2)


def test_runs_without_a_simulator_are_ranked_by_the_monitored_metric_in_its_direction():
    for mode, best_first in (("min", ["b", "a", "c"]), ("max", ["a", "b", "c"])):
        runs = [monitored("c", [], mode), monitored("a", [0.5, 0.9, 0.7], mode), monitored("b", [0.4, 0.8], mode)]
        page = comparison_page(runs)
        title, columns, rows = page.summaries[0]
        metric = runs[0].monitored
        assert (title, columns) == ("Runs", ("run", "state", "samples", metric))  # no empty columns of scores
        assert [row[0] for row in rows] == best_first
        best = {"min": {"a": "0.5", "b": "0.4", "c": ""}, "max": {"a": "0.9", "b": "0.8", "c": ""}}[mode]
        assert {row[0]: row[-1] for row in rows} == best
        first = page.sections[0][1][0]
        assert told(first[0], metric, "samples")
        better = "lower" if mode == "min" else "higher"
        heading, *ranked = ranking(runs)
        assert told(heading, metric, better)
        assert ranked == [f"  {best[name] or 'none':>10}  {name}" for name in best_first]


def test_one_evaluation_of_each_run_is_a_number_and_a_second_one_a_chart():
    metric = monitored("a", []).monitored
    page = comparison_page([monitored("a", [0.5]), monitored("b", [0.4])])
    title, columns, rows = page.summaries[0]
    assert not page.sections and metric in columns and sorted(row[-1] for row in rows) == ["0.4", "0.5"]
    page = comparison_page([monitored("a", [0.5]), monitored("b", [0.4, 0.6])])
    assert told_each((name for name, _ in page.sections[0][1]), (metric, "samples"), ("train/loss", "samples"))


def test_settings_that_differ_are_listed_for_every_run_and_no_other():
    runs = [story_of(name, lr=lr, seed=seed, width=8) for name, lr, seed in (("a", 1, 0), ("b", 2, 0), ("c", 2, 1))]
    ((_, columns, rows),) = [table for table in comparison_page(runs).tables if table[0] == "Settings that differ"]
    assert columns[0] == "run" and sorted(columns[1:]) == ["lr", "seed"]
    found = {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows}
    wanted = {"a": ("1", "0"), "b": ("2", "0"), "c": ("2", "1")}
    assert found == {name: {"lr": lr, "seed": seed} for name, (lr, seed) in wanted.items()}
    ((_, columns, rows),) = [table for table in comparison_page(runs[::2]).tables if table[0] == "Settings that differ"]
    assert columns == ("setting", "a", "c")
    assert sorted(rows) == [("lr", "1", "2"), ("seed", "0", "1")]


def test_runs_of_one_name_are_told_apart_by_their_place():
    runs = [dataclasses.replace(story_of("a"), directory=Path(place)) for place in ("x/a", "y/a")] + [story_of("b")]
    rows = dict((title, rows) for title, _, rows in comparison_page(runs).summaries)["Runs"]
    assert [row[0] for row in rows] == ["x/a", "y/a", "b"]


def test_configurations_are_folded_over_seeds_and_episodes_by_the_stratified_bootstrap():
    from dp_prior.evaluation.episode_metrics import worst_tenth
    from dp_prior_studio.pages.bootstrap import bootstrap, interval, mean

    scores = np.random.default_rng(0).uniform(size=(2, 3, 12))
    runs = [
        story_of(f"{name}{seed}", ("rollout", 1, tuple(scores[group, seed])), seed=seed, lr=group)
        for group, name in enumerate("ab")
        for seed in range(3)
    ]
    columns = ("configuration", "seeds", "episodes", "score", "worst tenth")
    [rows] = [rows for _, found, rows in comparison_page(runs).summaries if found == columns]
    for row in rows:
        group = int(row[0].removeprefix("lr="))
        assert row[1:3] == ("3", "12")
        for cell, statistic in zip(row[3:], (mean, worst_tenth), strict=True):
            values, draws = bootstrap(list(scores), statistic)
            low, high = interval(draws[:, group])
            assert cell == f"{values[group]:.4g} ({low:.4g} to {high:.4g})"
    [alone] = [rows for _, found, rows in comparison_page(runs[::3]).summaries if found == columns]
    assert alone == [], "without repeated seeds there is nothing to fold"
    broken = [*runs[:-1], story_of("b2", ("rollout", 1, (None,) * 12), seed=2, lr=1)]
    [none] = [rows for _, found, rows in comparison_page(broken).summaries if found == columns]
    assert none == []


def test_configurations_stand_from_best_to_worst():
    scores = {"a": (0.2, 0.9), "b": (0.8, 0.8), "c": (0.1, 0.2)}
    runs = [
        story_of(f"{name}{seed}", ("rollout", 1, (score,) * 2), seed=seed, lr=name)
        for name, both in scores.items()
        for seed, score in enumerate(both)
    ]
    folded, over_episodes = [rows for _, columns, rows in comparison_page(runs).summaries if "configuration" in columns]
    assert [row[0] for row in folded] == [row[0] for row in over_episodes] == ["lr=b", "lr=a", "lr=c"]
    low = [
        monitored(f"{width} {seed}", [value], width=width, seed=seed)
        for width, value in ((8, 0.5), (16, 0.3))
        for seed in range(2)
    ]
    for run in low:
        run.settings.pop("name")
    [rows] = [rows for _, columns, rows in comparison_page(low).summaries if rows and "configuration" in columns]
    assert told(rows[0][0], "width=16") and told(rows[1][0], "width=8")
