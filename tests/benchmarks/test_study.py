"""The study: its design balances every factor, its intervals are exact, and a repeated command does nothing twice."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.study import __main__ as study
from benchmarks.study import page
from benchmarks.study.design import (
    FACTORS,
    HORIZON,
    MAIN_JOB,
    MAIN_JOB_MIRRORED,
    MAIN_JOB_SHORT,
    PROBED,
    SHORT,
    WITH_SHORT,
    plackett_burman,
    rows,
    sign,
)
from benchmarks.study.measure import CHEAP, MEASURES, OWN, fits, thousandths
from benchmarks.study.results import Results, Run
from benchmarks.study.statistics import lenth_margin, spearman
from benchmarks.training import ROOT, assignments
from dp_prior.run.config import TrainConfig
from dp_prior_studio.pages.bootstrap import mean
from tests.messages import naming, told

SCREEN = [row for row in rows() if row.group in ("screen", "mirror")]


def test_each_half_of_the_design_is_orthogonal():
    design = plackett_burman()
    np.testing.assert_array_equal(design.T @ design, 12 * np.eye(11, dtype=int))
    np.testing.assert_array_equal(design.sum(0), np.zeros(11))


def test_with_its_mirror_image_no_interaction_of_two_factors_touches_an_effect():
    signs = np.array([[sign(row, factor) for factor in FACTORS] for row in SCREEN])
    assert signs.shape == (24, 11) and len(np.unique(signs, axis=0)) == 24
    for first, second in itertools.combinations(range(11), 2):
        np.testing.assert_array_equal((signs[:, first] * signs[:, second]) @ signs, np.zeros(11))


def test_effects_of_an_additive_score_are_recovered_whatever_its_interactions():
    rng = np.random.default_rng(0)
    true, pairs = rng.normal(size=11), rng.normal(size=(11, 11))
    found = []
    for row in SCREEN:
        x = np.array([sign(row, factor) for factor in FACTORS])
        score = 0.5 + true @ x + x @ np.triu(pairs, 1) @ x
        found.append(page.Measured(row.name, row.group, row.levels, [], np.full((1, 5), score)))
    effects = page.effects(found, mean)
    np.testing.assert_allclose([value for value, _ in effects.values()], -2 * true, atol=1e-12)
    assert len(page.complete(found)) == 24 and len(page.complete(found[:20])) == 12 and not page.complete(found[:11])


@pytest.mark.slow
def test_every_row_is_a_valid_configuration_with_its_levels(tmp_path, subtests):
    for row in rows():
        with subtests.test(row.name):
            changes = study.settings(Run(row, "human", "450,000 samples", 450_000, 1), tmp_path, tmp_path / "data.npz")
            config = TrainConfig.from_json_path(ROOT / "configs/policy/pusht_state.json", assignments(changes))
            assert fits(config, MEASURES[OWN]) and config.seed == 1 and config.train.samples == 450_000
            if row.levels:
                assert config.data.batch_size == int(row.levels["batch"])
                assert config.task.horizon == int(row.levels["horizon"])


def test_ways_of_running_take_the_evaluations_of_their_names():
    config = TrainConfig.from_json_path(ROOT / "configs/policy/pusht_state.json")
    for name, measure in MEASURES.items():
        if name.endswith("evaluations"):
            visited = len(measure.sampler.timesteps(config.task.diffusion.schedule.table()))
            found = round(measure.sampler.renoise * visited) if measure.warm_start else visited
            assert found == int(name.split()[-2])


def test_the_short_horizon_is_that_of_the_configuration():
    path = ROOT / "configs/policy/pusht_state.json"
    assert TrainConfig.from_json_path(path, assignments(SHORT)) == TrainConfig.from_json_path(path)


def test_a_probe_changes_one_factor_of_the_main_job():
    path = ROOT / "configs/policy/pusht_state.json"
    main_job = TrainConfig.from_json_path(path, assignments(HORIZON))
    for factor, levels in PROBED.items():
        own, *others = (TrainConfig.from_json_path(path, assignments(HORIZON | changes)) for changes in levels.values())
        assert own == main_job, factor
        assert others and all(other != main_job for other in others)
    names = {row.name for row in rows() if row.group == "probe"}
    assert names >= {"network: MLP", "objective: flow", "observations: 2", "learning rate: 1e-2"}
    assert not names & {"network: UNet", "observations: 1"}


def test_lenths_margin_is_that_of_the_noise_beside_a_few_large_effects():
    noise = np.random.default_rng(4).normal(scale=0.02, size=(1000, 11))
    noise[:, :2] += 1.0
    exceeded = np.array([np.abs(one[2:]) > lenth_margin(one) for one in noise]).mean()
    found = np.array([(np.abs(one[:2]) > lenth_margin(one)).all() for one in noise]).mean()
    assert exceeded < 0.05 and found > 0.99


def test_spearman_is_the_closed_form_without_ties_and_keeps_its_order_with_them():
    rng = np.random.default_rng(5)
    a, b = rng.permutation(15), rng.permutation(15)
    rho, low, high = spearman(a, np.exp(b))
    assert rho == pytest.approx(1 - 6 * ((a - b) ** 2).sum() / (15 * (15**2 - 1))) and low < rho < high
    assert spearman(np.array([1, 2, 2, 3]), np.array([1, 5, 5, 9])) == (1, 1, 1)
    assert all(map(math.isnan, spearman(np.ones(5), np.arange(5))))


def test_spearmans_interval_covers():
    rng = np.random.default_rng(6)
    true, hits = 6 / np.pi * np.arcsin(0.6 / 2), 0
    for _ in range(500):
        x = rng.normal(size=30)
        _, low, high = spearman(x, 0.6 * x + 0.8 * rng.normal(size=30))
        hits += low < true < high
    assert 0.92 < hits / 500 < 0.98


def made_up(path: Path, chosen=None, episodes=10) -> Results:
    """Results of every row, without meaning."""
    results, rng = Results(path), np.random.default_rng(0)
    for seed, row in itertools.product((0, 1), rows() if chosen is None else chosen):
        run = Run(row, "human", "450,000 samples", 450_000, seed)
        about = {"row": row.name, "group": row.group, "code": row.code, "levels": row.levels, "data": "human"}
        about |= {"machine": "a processor", "budget": run.budget, "seed": seed}
        measures = {
            name: rng.normal() for name in ("training loss", "validation loss", "action error", "lower quartile")
        }
        measures["action error by step"] = rng.normal(size=8).tolist()
        results.add({"run": run.id, "measure": CHEAP, "cheap": measures, "cpu_s": 9.5, "samples": 450_000, **about})
        for name in MEASURES if row.is_run_otherwise else [OWN]:
            scores = [thousandths(score) for score in np.minimum(1, rng.beta(4, 1, episodes) * 1.05)]
            results.add({"run": run.id, "measure": name, "scores": scores})
    return results


@pytest.mark.slow
def test_the_page_is_made_from_the_file_alone(tmp_path):
    pytest.importorskip("matplotlib", reason="NOT CHECKED: the plots extra is not installed")
    made_up(tmp_path / "results.jsonl")
    document = tmp_path / "study.md"
    document.write_text(f"# Study\n\n{page.BEGIN}\nwhat stood here\n{page.END}\n\nMore.\n")
    pages = []
    for _ in range(2):
        arguments = ["--results", str(tmp_path / "results.jsonl"), "--page", str(document)]
        done = CliRunner().invoke(study.main, arguments, catch_exceptions=False)
        assert done.exit_code == 0
        pages.append(document.read_text())
    assert pages[0] == pages[1] and pages[0].startswith("# Study\n") and pages[0].endswith("\n\nMore.\n")
    assert "what stood here" not in pages[0]
    assert all((tmp_path / f"media/{name}.png").stat().st_size > 1000 for name in ("study", "study_measures"))
    for text in (
        *("| lerobot | 2 |", "|  | ours | 2 |", "24 rows (both halves)", "| network: DiT for UNet | ", "| eta 1 | 2 |"),
        *("|  | network: MLP | 2 |", "| no average | 48 |", "| validation loss, eps | 38 |", "| action error | 118 |"),
        *("| lower quartile of the action error | 118 |", "| validation loss, v, min-SNR | 68 |", ": main job | "),
    ):
        assert text in pages[0], text


@pytest.mark.slow
def test_the_tables_in_the_repository_are_made_of_its_results():
    text = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    current = page.with_tables(text, Results(ROOT / "docs/study.jsonl"))
    assert text == current, "run: python -m benchmarks.study --page docs/study.md"


def test_other_codes_are_compared_with_the_main_job_of_their_data_samples_and_horizon():
    def row(name: str) -> page.Measured:
        return page.Measured(name, "peers", {}, [], np.zeros((1, 1)))

    names = (MAIN_JOB, MAIN_JOB_SHORT, MAIN_JOB_MIRRORED, "ours", "lerobot", f"lerobot{WITH_SHORT}")
    panels = {("human", "many"): [row(name) for name in names], ("human with mirror images", "many"): [row("lerobot")]}
    rivals = [page.rival(one, setting, panels) for setting, rows in panels.items() for one in rows]
    expected = [None, None, None, MAIN_JOB, MAIN_JOB, MAIN_JOB_SHORT, MAIN_JOB_MIRRORED]
    assert [one and one.name for one in rivals] == expected
    assert page.rival(row("lerobot"), ("human", "few"), panels) is None


def test_codes_are_told_apart_at_the_first_episode_that_suffices():
    scores = np.random.default_rng(0).uniform(0.2, 1, (3, 200))
    better, worse = (page.Measured(name, "peers", {}, [], scores + by) for name, by in (("a", 0.0), ("b", -0.2)))
    after = int(page._told(better, worse))
    assert page._told(worse, better) == str(after) and page._told(better, better) == "-"
    short = (row._replace(scores=row.scores[:, : after - 1]) for row in (better, worse))
    assert page._told(*short) == "-"


def test_thousandths_keep_what_is_solved():
    assert [thousandths(score) for score in (0.0, 0.12345, 0.99999, 1.0, math.nan)] == [0, 123, 999, 1000, 0]


def test_a_study_of_two_data_sets_and_seeds_takes_little_room(tmp_path):
    one = made_up(tmp_path / "results.jsonl", episodes=200)  # of one data set
    assert 2 * one.path.stat().st_size < 1.3e6


def test_a_repeated_command_runs_only_what_is_missing(tmp_path, monkeypatch):
    chosen = [row for row in rows() if row.group == "screen"]
    results = made_up(tmp_path / "results.jsonl", chosen)
    lines = results.path.read_bytes().splitlines(keepends=True)
    results.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-9])  # killed in the middle of the last line
    finished = []
    monkeypatch.setattr(study.Study, "finish", lambda self, run, position: finished.append((run.id, self.wanted(run))))
    arguments = ["--results", str(results.path), "--out", str(tmp_path), "--data", f"human={data(tmp_path)}"]
    refused = CliRunner().invoke(study.main, arguments)
    assert refused.exit_code == 2 and told(refused.output, "10 episodes", "--episodes", 200)
    arguments += ["--episodes", "10"]
    done = CliRunner().invoke(study.main, [*arguments, "--group", "screen", "--seeds", "2"], catch_exceptions=False)
    assert done.exit_code == 0 and told(done.output, "23 of 24")
    assert finished == [("screen 12, human, 450,000 samples, seed 1", [list(MEASURES)[-1]])]
    assert len(results.path.read_bytes().splitlines()) == len(lines) - 1


def test_a_failed_run_does_not_stop_the_others(tmp_path, monkeypatch):
    seen = []

    def finish(self, run, position):
        seen.append(position)
        if position == "2/12":
            raise RuntimeError("a process ended with exit code 65")

    monkeypatch.setattr(study.Study, "finish", finish)
    arguments = ["--results", str(tmp_path / "r"), "--out", str(tmp_path), "--data", f"human={data(tmp_path)}"]
    done = CliRunner().invoke(study.main, [*arguments, "--group", "mirror"])
    assert len(seen) == 12 and done.exit_code == 1
    assert told(done.output, "1 of 12", "exit code 65")


def test_a_budget_in_minutes_follows_from_the_speed_of_a_finished_run(tmp_path):
    row, other = SCREEN[2:4]
    results = made_up(tmp_path / "results.jsonl", [row])
    assert study.samples_of(row, "human", 1.0, results) == round(60 * 450_000 / 9.5, -3)
    with pytest.raises(study.click.UsageError, match=naming("'screen 04'", "--samples")):
        study.samples_of(other, "human", 1.0, results)


def data(place: Path, **arrays) -> Path:
    states = np.random.default_rng(0).uniform(100, 400, (60, 5)).astype(np.float32) % np.array([512] * 4 + [6.28], "f")
    np.savez(place / "d.npz", state=states, action=states[:, :2], episode_ends=[30, 60], **arrays)
    return place / "d.npz"


def test_prepared_data_have_recorded_keypoints_or_those_of_their_states(tmp_path):
    with np.load(study.prepare(data(tmp_path), tmp_path / "a/1.npz")) as found:
        np.testing.assert_array_equal(found["keypoint"], study.keypoints(found["state"]))
    recorded = np.ones((60, 9, 2), dtype=np.float32)
    with np.load(study.prepare(data(tmp_path, keypoint=recorded), tmp_path / "b.npz")) as found:
        np.testing.assert_array_equal(found["keypoint"], recorded)


def test_mirrored_data_append_the_image_of_every_episode(tmp_path):
    source = data(tmp_path, keypoint=np.ones((60, 9, 2), dtype=np.float32))
    with np.load(source) as given, np.load(study.prepare(source, tmp_path / "a.npz", is_mirrored=True)) as found:
        recorded, images = given["state"], found["state"][60:]
        np.testing.assert_array_equal(found["state"][:60], recorded)
        np.testing.assert_array_equal(images[:, :4], 512 - recorded[:, [1, 0, 3, 2]])
        np.testing.assert_allclose(images[:, 4], math.pi / 2 - recorded[:, 4], atol=1e-6)
        np.testing.assert_array_equal(found["action"][60:], 512 - given["action"][:, ::-1])
        np.testing.assert_array_equal(found["episode_ends"], [30, 60, 90, 120])
        np.testing.assert_array_equal(found["keypoint"][:60], given["keypoint"])
        np.testing.assert_array_equal(found["keypoint"][60:], study.keypoints(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--row", "screen 99"],
            ("rows", "main job,"),
        ),
        (["--data", "human=/nowhere.npz"], ("'/nowhere.npz'", "NAME=FILE.npz")),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, tmp_path):
    done = CliRunner().invoke(study.main, ["--out", str(tmp_path), "--results", str(tmp_path / "r"), *arguments])
    assert done.exit_code == 2 and told(" ".join(done.output.replace("│", " ").split()), *message)


@pytest.mark.slow
def test_a_whole_row_is_trained_measured_and_not_repeated(tmp_path):
    pytest.importorskip("gym_pusht", reason="NOT CHECKED: the pusht extra is not installed")
    arguments = ["--results", str(tmp_path / "r.jsonl"), "--out", str(tmp_path), "--row", "mirror 12"]
    arguments += ["--samples", "1024", "--episodes", "2", "--measure", OWN, "--measure", "selected weights"]
    outputs = [CliRunner().invoke(study.main, arguments, catch_exceptions=False).output for _ in range(2)]
    assert "[1/1] mirror 12, scripted, 1,024 samples, seed 0: trained in" in outputs[0]
    assert outputs[1].count("\n") == 1 and told(outputs[1], "1 of 1")
    found = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [line["measure"] for line in found] == [CHEAP, OWN, "selected weights"]
    assert found[0]["cpu_s"] > 0 and len(found[0]["cheap"]["action error by step"]) == 8
    assert all(len(line["scores"]) == 2 for line in found[1:])
