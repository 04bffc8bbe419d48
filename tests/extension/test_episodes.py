"""A reader of episodes from an installed package: one CSV file per episode, trained from JSON."""

import csv

import numpy as np

from tests.extension.installed import assert_unknown, examples, installed, lines_of
from tests.tiny import train

PACKAGE = examples()["my_episodes"]


def write_csv(folder, episodes):
    """The arrays of an .npz set as one file per episode."""
    folder.mkdir()
    columns = {key: episodes[key] for key in ("state", "action")}
    header = [f"{key}.{place}" for key, values in columns.items() for place in range(values.shape[1])]
    for number, (begin, end) in enumerate(zip([0, *episodes["episode_ends"]], episodes["episode_ends"], strict=False)):
        with open(folder / f"{number:03d}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([header, *np.hstack([values[begin:end] for values in columns.values()]).tolist()])


def test_reader_of_50_lines_gives_the_run_that_the_same_numbers_in_npz_give(tmp_path):
    assert lines_of(PACKAGE) <= 50
    assert_unknown("csv_episodes")
    entries = {"episodes.csv_episodes": "outside_csv:CsvEpisodesConfig"}
    with installed(tmp_path, "outside_csv", PACKAGE, entries) as tiny:
        for place in ("npz", "csv"):
            (tmp_path / place).mkdir()
        expected = tiny.write(tmp_path / "npz", train__steps=4)
        write_csv(tmp_path / "episodes", np.load(tmp_path / "npz" / "toy.npz"))
        record = {"type": "csv_episodes", "path": str(tmp_path / "episodes")}
        config = tiny.write(tmp_path / "csv", train__steps=4, data__episodes=record)
        for path in (expected, config):
            done = tiny.train(path)
            assert done.exit_code == 0, done.output
        assert tiny.rows(tmp_path / "csv" / "run") == tiny.rows(tmp_path / "npz" / "run")
        found = tmp_path / "episodes" / "001.csv"
        found.write_text(found.read_text() + found.read_text().splitlines()[-1] + "\n")
        done = tiny.train(config)
        assert done.exit_code == 65 and "001.csv" in done.output, "its files are compared at the next start"
    done = train(config)
    assert done.exit_code == 64 and "data.episodes.type: 'csv_episodes' is not known" in done.output
