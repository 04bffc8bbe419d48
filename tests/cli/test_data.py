"""What the commands about data refuse, before anything is replaced, and the frame caches that one builds and lists."""

import json

import numpy as np
import pytest

from dp_prior.data.frames.build_lock import build_lock
from tests.cli.invoked import command
from tests.messages import told
from tests.tiny import train
from tests.tiny_camera import saved


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (
            "make-goal-demonstrations --episodes four.npz --out new",
            ("state (10, 4)", "action (10, 2)"),
        ),
        (
            "embed-demonstrations --episodes four.npz --out new",
            ("state (10, 4)", "action (10, 2)"),
        ),
        ("make-goal-demonstrations --episodes empty.npz --out new", ("empty.npz: 1 problem", "No data")),
        (
            "make-goal-demonstrations --episodes ends.npz --out new",
            ("ends.npz", "episode ends", 10),
        ),
        (
            "make-goal-demonstrations --episodes good.npz --out good.npz",
            ("good.npz exists", "another file"),
        ),
        ("make-goal-demonstrations --episodes good.npz --out ends.npz", ("ends.npz exists", "another file")),
        ("align-demonstrations --episodes good.npz --out link.npz", ("link.npz exists", "another file")),
        ("make-demonstrations --episodes 1 --out good.npz", ("good.npz exists", "another file")),
        ("make-demonstrations --episodes 1 --out link.npz", ("link.npz exists", "another file")),
        ("make-demonstrations --task TwoArmLift --out new.npz", ("'TwoArmLift'", "--task", "'Lift'")),
        ("make-demonstrations --task zzz --out new.npz", ("'zzz'", "pusht", "insertion", "NutAssemblySquare", "MT50")),
        ("inspect good.npz --html ./good.npz", ("good.npz", "no page", "another file")),
        ("inspect good.npz --html four.npz", ("four.npz", "no page", "another file")),
        ("inspect good.npz --html .", ("no page", "another file")),
        ("inspect good.npz --write-config good.npz/new.json", ("good.npz", "another file")),
        ("make-demonstrations --task insertion --out new.npz --noise nan", ("nan", "finite")),
        ("embed --model hashed --out new --texts ends.npz --set a=3", ("--set", "--config_file")),
        ("embed --model hashed --out new --config_file digits --key a --column b", ("--column", "--texts", "--key")),
        ("inspect good.npz --set seed=3", ("--set seed=3", "configuration", "good.npz")),
        ("convert good.npz new --to lerobot --fps nan", ("nan", "finite")),
        ("convert good.npz new --to lerobot --fps inf", ("inf", "finite")),
        ("push runs/a --wait inf", ("inf", "finite")),
        ("push runs/a --wait nan", ("nan", "finite")),
        ("push runs/a --wait -5", (-5.0, "x>=0")),
    ],
)
def test_what_a_command_cannot_use_is_refused_in_a_line_and_nothing_is_replaced(line, refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays = {"state": np.zeros((10, 5), np.float32), "action": np.zeros((10, 2), np.float32)}
    np.savez("good.npz", **arrays, episode_ends=[4, 10])
    np.savez("ends.npz", **arrays, episode_ends=[4, 9])
    np.savez("four.npz", **{**arrays, "state": np.zeros((10, 4))}, episode_ends=[10])
    (tmp_path / "empty.npz").touch()
    (tmp_path / "link.npz").symlink_to("four.npz")
    before = {path.name: (path.is_symlink(), path.read_bytes()) for path in tmp_path.iterdir()}
    done = command(*line.split())
    assert done.exit_code in (2, 64) and told(done.output, *refusal), done.output
    assert before == {path.name: (path.is_symlink(), path.read_bytes()) for path in tmp_path.iterdir()}


@pytest.mark.parametrize("option", [["--episodes", "0"], ["--seed", "-1"], ["--workers", "0"]])
def test_demonstrations_are_not_begun_with_numbers_that_cannot_be(option, tmp_path):
    found = command("make-demonstrations", "--out", str(tmp_path / "d.npz"), *option)
    assert found.exit_code == 2 and told(found.output, f"'{option[0]}'", option[1], "range")


def test_frame_caches_are_built_ahead(tmp_path):
    config = saved(tmp_path)
    found = [command("cache", config).output for _ in range(2)]
    assert "frames/s" in found[0] and "GB free" in found[0]
    assert told(found[1], "frames", "cached") and "frames/s" not in found[1]
    assert "to read" not in train(config, "--check").output


def test_caches_that_no_configuration_given_uses_are_listed_and_removed_only_when_told(tmp_path):
    first, second = saved(tmp_path), tmp_path / "second.json"
    other = json.loads(first.read_text())
    other["data"]["images"]["front"]["size"] = [10, 12]
    second.write_text(json.dumps(other))

    def cache(*arguments):
        found = command("cache", *arguments)
        return found.exit_code, found.output

    def caches():
        return {path.parent for path in tmp_path.glob(".dp_prior_frames/*/cache.json")}

    assert cache(first)[0] == 0
    (used,) = caches()
    assert cache(first, second)[0] == 0
    (stale,) = caches() - {used}
    (tmp_path / ".dp_prior_frames" / "mine").mkdir()
    assert cache(first, second, "--stale") == (0, "0 caches, 0.000 GB\n")
    code, output = cache(first, "--stale")
    assert code == 0 and f"not used  {stale}  0.000 GB  from {tmp_path / 'd.npz'}\n1 caches" in output
    assert caches() == {used, stale}
    with build_lock(stale.with_name(f"{stale.name}.lock"), print, lambda: "", lambda: None):
        code, output = cache(first, "--remove-stale")
    assert code == 65 and told(output, stale, "process")
    assert caches() == {used, stale}
    assert cache(first, "--remove-stale")[0] == 0
    assert caches() == {used} and (tmp_path / ".dp_prior_frames" / "mine").is_dir()
    assert not stale.with_name(f"{stale.name}.lock").exists()
