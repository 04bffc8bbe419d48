"""What the commands about data refuse, before anything is replaced, and the frame caches that one builds and lists."""

import json

import pytest

from dp_prior.data.frames.build_lock import build_lock
from tests.cli.invoked import command
from tests.cli.refused import assert_refused
from tests.messages import told
from tests.tiny import train, write
from tests.tiny_camera import saved


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("convert good.npz new --to lerobot --fps nan", ("nan", "finite")),
        ("convert good.npz new --to lerobot --fps inf", ("inf", "finite")),
        ("push runs/a --wait inf", ("inf", "finite")),
        ("push runs/a --wait nan", ("nan", "finite")),
        ("push runs/a --wait -5", (-5.0, "x>=0")),
    ],
)
def test_what_a_command_cannot_use_is_refused_in_a_line_and_nothing_is_replaced(line, refusal, tmp_path, monkeypatch):
    assert_refused(line, refusal, tmp_path, monkeypatch)


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


def test_a_set_of_images_is_cached_ahead_and_its_cache_is_no_stale_one(tmp_path):
    from tests.test_image import tiny

    config = tmp_path / "images.json"
    config.write_text(json.dumps(tiny(tmp_path)))
    for _ in range(2):
        done = command("cache", config)
        assert done.exit_code == 0 and told(done.output, "frames", "cached") and "camera" not in done.output, (
            done.output
        )
    assert command("cache", config, "--stale").output == "0 caches, 0.000 GB\n"


def test_data_without_a_camera_have_nothing_to_cache(tmp_path):
    done = command("cache", write(tmp_path))
    assert done.exit_code == 0 and told(done.output, "no camera"), done.output
