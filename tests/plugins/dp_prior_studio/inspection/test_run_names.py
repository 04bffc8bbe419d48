"""Two data sets do not get the same run."""

import json

import pytest

from dp_prior_studio.inspection.run_names import data_name, run_directory


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("pusht/lerobot", "pusht/lerobot"),
        ("lift/ph/low_dim.hdf5", "ph/low_dim.hdf5"),
        ("cube/data/v3.0", "cube/data/v3.0"),
        ("mine.npz", "mine.npz"),
        ("cloth/demos/fold_towel", "fold_towel"),
    ],
)
def test_a_name_that_many_have_is_told_apart_by_the_folders_above(path, name, tmp_path):
    assert data_name(tmp_path / path) == name


def test_a_relative_name_is_that_of_the_folder_it_stands_in(tmp_path, monkeypatch):
    (tmp_path / "cube" / "lerobot").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cube" / "lerobot")
    assert data_name(tmp_path / "cube" / "lerobot" / ".") == data_name(tmp_path / "cube" / "lerobot") == "cube/lerobot"


def test_a_run_on_other_data_keeps_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"episodes": {"type": "lerobot", "path": "/data/cube/lerobot"}, "batch_size": 8}
    assert run_directory("cube/lerobot", data) == "runs/cube_lerobot"
    (tmp_path / "runs" / "cube_lerobot").mkdir(parents=True)
    assert run_directory("cube/lerobot", data) == "runs/cube_lerobot"
    (tmp_path / "runs" / "cube_lerobot" / "config.json").write_text(json.dumps({"data": data}))
    assert run_directory("cube/lerobot", {**data, "batch_size": 4}) == "runs/cube_lerobot"
    other = {"episodes": {"type": "lerobot", "path": "/other/cube/lerobot"}}
    assert run_directory("cube/lerobot", other) == "runs/cube_lerobot_2"
    assert run_directory("..", {}) == "runs/data"


def test_the_directory_is_one_that_every_disk_accepts_and_keeps_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"episodes": {"type": "npz", "path": "/data/a.npz"}}
    assert run_directory("con", data) == "runs/con_2" and run_directory("NUL", data) == "runs/NUL_2"
    assert run_directory("x" * 255, data) == f"runs/{'x' * 80}"
    for name in ("Cube", "cloth", "Cloth", "con"):  # as on a disk of Linux
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text(json.dumps({"data": {"path": f"/other/{name}"}}))
    assert run_directory("cube", data) == "runs/cube_2"
    assert run_directory("CLOTH", data) == "runs/CLOTH_2"
    assert run_directory("con", {"path": "/other/con"}) == "runs/con"
    assert run_directory("Cloth", {"path": "/other/Cloth"}) == "runs/Cloth"
