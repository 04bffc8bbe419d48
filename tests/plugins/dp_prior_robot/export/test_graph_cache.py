"""Folders of graphs are named by what they depend on, whole, compared with their hash, and take a bounded room."""

import os
import time

import pytest

from dp_prior.files.regular_files import UnfitError
from dp_prior_robot.export import graph_cache
from tests.messages import naming
from tests.plugins.dp_prior_robot.export.policies import build

GRAPH = "network.onnx"


@pytest.fixture
def networks(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_cache, "CACHE", tmp_path)
    return tmp_path


def test_a_place_depends_on_weights_configuration_and_versions(networks, monkeypatch):
    def place(policy):
        return graph_cache.place_of(policy, policy.backbone)

    policy = build()
    first = place(policy)
    assert first == place(build()) and first.parent == networks
    assert first != place(build(sampler={"type": "ddim", "steps": 2}))
    assert first != graph_cache.place_of(policy, policy.encoder)
    next(policy.backbone.parameters()).data[0] += 1e-3
    assert first != place(policy)
    monkeypatch.setattr(graph_cache, "versions", lambda: {"onnxruntime": "0"})
    assert first != place(build())


def test_a_changed_byte_or_graph_is_seen_and_what_is_no_file_is_not_waited_for(networks):
    folder = networks / "a"
    graph_cache.store(folder, "network", lambda: {GRAPH: bytes(100), "conditions.onnx": bytes(10)})
    graph_cache.check(folder)
    (folder / GRAPH).write_bytes(bytes(50) + b"1" + bytes(49))
    with pytest.raises(ValueError, match=naming(str(folder))):
        graph_cache.check(folder)
    (folder / GRAPH).unlink()
    with pytest.raises(ValueError, match=naming(str(folder))):
        graph_cache.check(folder)
    os.mkfifo(folder / GRAPH)  # a reader of a pipe would wait for a writer
    with pytest.raises(UnfitError):
        graph_cache.check(folder)
    graph_cache.remove(folder)
    assert not folder.exists()


def test_measurements_are_kept_and_made_again_where_they_are_damaged(networks):
    graph_cache.store_choices(networks, {"up to 1 rows": True, "up to 8 rows": False})
    assert graph_cache.stored_choices(networks) == {"up to 1 rows": True, "up to 8 rows": False}
    (networks / graph_cache.CHOICES).write_text("{")
    assert graph_cache.stored_choices(networks) == {} == graph_cache.stored_choices(networks / "nowhere")
    graph_cache.store_choices(networks / "nowhere", {"up to 1 rows": True})  # where it cannot be kept, nothing fails


def test_networks_that_nobody_used_for_long_are_deleted(networks):
    forgotten = networks / "forgotten"
    forgotten.mkdir()
    os.utime(forgotten, (0, 0))
    graph_cache.store(networks / "new", "network", dict)
    assert not forgotten.exists() and (networks / "new").is_dir()


@pytest.mark.parametrize(("most", "expected"), [(3000, {"b", "c", "d"}), (2999, {"c", "d"}), (999, set())])
def test_networks_take_a_bounded_room_and_the_longest_unused_go_first(most, expected, networks, monkeypatch):
    now = time.time()
    for age, name in enumerate("dcba"):
        (networks / name).mkdir()
        (networks / name / GRAPH).write_bytes(bytes(1000))
        os.utime(networks / name, (now - age, now - age))
    monkeypatch.setattr(graph_cache, "MOST_BYTES", most)
    graph_cache.store(networks / "new", "network", lambda: {GRAPH: bytes(5000)})
    assert {path.name for path in networks.iterdir()} == {*expected, "new"}, "the newest one stays, however large"
