"""An export runs without torch, says of a bad observation what the policy says, and is read whole or not at all."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from dp_prior.files.json_text import seal, unseal
from dp_prior_robot.export.exported_agent import ExportAgent
from dp_prior_robot.export.exported_policy import ExportError, OnnxPolicy
from dp_prior_robot.export.torch_policy import AgentPolicy, TorchExportPolicy
from dp_prior_robot.export.write import document, write_export
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.export.policies import (
    CAMERA,
    ByTorch,
    as_numpy,
    build,
    inputs,
    needs_onnx,
    of_batch,
    random_rows,
    steps,
)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "task"),
    [
        (None, {"backbone": {"type": "unet1d", "down_dims": [16, 32], "step_embed_dim": 16}}),
        (None, {"backbone": {"type": "unet1d_local", "down_dims": [16, 32], "step_embed_dim": 16}}),
        (None, {"backbone": {"type": "dit", "embed_dim": 32, "n_layers": 2, "n_heads": 2, "step_embed_dim": 16}}),
        (None, {"backbone": {"type": "transformer", "embed_dim": 32, "n_layers": 2, "n_heads": 2}}),
        (CAMERA, {"encoders": {"camera": {"type": "resnet", "width": 16, "blocks": [1, 1], "stem": "conv"}}}),
    ],
    ids=["unet1d", "unet1d_local", "dit", "transformer", "camera"],
)
def test_every_network_is_exported(spec, task, tmp_path):
    policy = build(**({} if spec is None else {"spec": spec}), **task)
    for layout in ("onnx", "torch_export"):
        report = write_export(policy, tmp_path / layout, layout, source="a test")
        assert report["largest_error"] < 1e-5, layout


@pytest.mark.parametrize("layout", [OnnxPolicy, TorchExportPolicy])
def test_a_directory_that_is_no_export_is_refused(layout, tmp_path):
    with pytest.raises(FileNotFoundError, match=naming("policy.json", "dp-prior export RUN DIRECTORY")):
        layout.load(tmp_path)
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(ExportError, match=naming("policy.json", "JSON", "SHA-256")):
        layout.load(tmp_path)


@pytest.mark.parametrize(("layout", "found"), [(OnnxPolicy, "pt2"), (TorchExportPolicy, "onnx")])
def test_an_export_in_the_other_format_is_refused_with_its_files(layout, found, tmp_path):
    policy = build()
    files = {f"{name}.{found}": "0" * 64 for name in ("encoder", "denoiser")}
    (tmp_path / "policy.json").write_bytes(seal(document(policy, policy.sampler) | {"source": "a run", "files": files}))
    with pytest.raises(ExportError, match=naming(f"encoder{layout.extension}", layout.__name__, *files)):
        layout.load(tmp_path)


@pytest.mark.slow
@needs_onnx
def test_a_damaged_export_is_refused(exported, tmp_path):
    def copy(name):
        return Path(shutil.copytree(exported, tmp_path / name))

    changed = copy("changed")
    content = bytearray((changed / "denoiser.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (changed / "denoiser.onnx").write_bytes(content)
    with pytest.raises(ExportError, match=naming("denoiser.onnx", "policy.json")):
        OnnxPolicy.load(changed)
    missing = copy("missing")
    (missing / "encoder.onnx").unlink()
    with pytest.raises(ExportError, match=naming("encoder.onnx", "No such file")):
        OnnxPolicy.load(missing)
    altered = copy("altered")
    (altered / "policy.json").write_text((altered / "policy.json").read_text().replace('"horizon": 8', '"horizon": 9'))
    with pytest.raises(ExportError, match=naming("altered/policy.json", "SHA-256")):
        OnnxPolicy.load(altered)
    newer = copy("newer")
    document = unseal((newer / "policy.json").read_bytes())
    (newer / "policy.json").write_bytes(seal({**document, "format": 4}))
    with pytest.raises(ExportError, match=naming("newer/policy.json", "format 4", 3)):
        OnnxPolicy.load(newer)
    (newer / "policy.json").write_bytes(seal({key: value for key, value in document.items() if key != "horizon"}))
    with pytest.raises(ExportError, match=naming("policy.json", "'horizon'")):
        OnnxPolicy.load(newer)
    for content, message in (
        (b"garbage", ("denoiser.onnx", "ONNX")),
        (b"", ("newer/denoiser.onnx", "[ONNXRuntimeError]", 2)),
    ):
        (newer / "denoiser.onnx").write_bytes(content)
        files = {**document["files"], "denoiser.onnx": hashlib.sha256(content).hexdigest()}
        (newer / "policy.json").write_bytes(seal({**document, "files": files}))
        with pytest.raises(ExportError, match=naming(*message)):
            OnnxPolicy.load(newer)


def refused(policy, obs):
    with pytest.raises(ValueError) as caught:
        policy.predict(obs, 0)
    return str(caught.value)


def test_bad_observations_are_refused_by_name(policy):
    exported, good = ByTorch.of(policy), as_numpy(inputs(policy, 2))
    assert exported.predict({**good, "another": None}, 0).shape == (2, 8, 2)
    assert np.array_equal(exported.predict(good, 5), exported.predict(good, 5))
    found = refused(exported, {"positon": good["position"], "embedding": good["embedding"]})
    assert told(found, "'position'", "missing", "position (2,), embedding (6,)", "'positon'", "Name it 'position'")
    found = refused(exported, {**good, "position": good["position"][:, :1]})
    assert told(found, "'position'", "(1, 2)", "(2, 2)")
    found = refused(exported, {**good, "embedding": good["embedding"][:1]})
    assert told(found, "'embedding'", "1 rows", "expected 2")
    assert told(refused(exported, {**good, "position": np.full((2, 2, 2), "a")}), "<U1", "numbers")
    bad = good["position"].astype(np.float64)
    bad[1, 0, 1] = 1e300
    assert told(refused(exported, {**good, "position": bad}), "'position'", "row 1", "[0, 1]", "inf")


def test_frames_have_the_type_and_size_of_training(tmp_path):
    encoder = {"type": "resnet", "width": 16, "blocks": [1], "stem": "patch", "keypoints": 4}
    exported = ByTorch.of(build(CAMERA, encoders={"camera": encoder}))
    good = {"camera": np.zeros((1, 2, 16, 16, 3), np.uint8), "position": np.zeros((1, 2, 2))}
    assert exported.predict(good, 0).shape == (1, 8, 2)
    found = refused(exported, {**good, "camera": good["camera"] / 255})
    assert told(found, "'camera'", "float64", "uint8", "'image'")
    found = refused(exported, {**good, "camera": np.zeros((1, 2, 32, 32, 3), np.uint8)})
    assert told(found, "'camera'", "(32, 32, 3)", "uint8 (16, 16, 3)")


def test_an_export_of_a_fixed_batch_takes_no_other_number_of_rows(policy):
    exported = of_batch(policy, 2)
    assert exported.predict(as_numpy(inputs(policy, 2)), 0).shape == (2, 8, 2)
    for rows in (1, 3):
        with pytest.raises(ValueError, match=naming("2 rows", f"given {rows}", f"--batch {rows}", "without --batch")):
            exported.predict(as_numpy(inputs(policy, rows)), 0)
        with pytest.raises(ValueError, match=naming("2 rows", f"given {rows}")):
            AgentPolicy(exported).draw(inputs(policy, rows), random_rows(rows))
    with pytest.raises(ValueError, match=naming("2 rows", "given 1", "--batch 1")):
        ExportAgent(exported)
    with pytest.raises(ValueError, match=naming("2 rows", "any number", "without --batch")):
        exported.check_batch(None)
    assert ExportAgent(of_batch(policy, 1)).act(steps(policy)[0]).shape == (2,)


@needs_onnx
def test_without_onnxruntime_the_extra_is_named(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=naming("onnxruntime", 'pip install "dp_prior[onnx]"')):
        OnnxPolicy.load(exported)


@needs_onnx
def test_parity_and_numbers_are_plain_json(exported):
    assert sorted(path.name for path in exported.iterdir()) == [
        "denoiser.onnx", "encoder.onnx", "parity.json", "policy.json",
    ]  # fmt: skip
    assert json.loads((exported / "parity.json").read_text())["largest_error"] < 1e-5
    document = json.loads((exported / "policy.json").read_text())
    assert document["sampler"]["steps"] == 4 and len(document["cold"]["evaluations"]) == 4
    assert document["source"] == "a test" and document["spec"]["x_shape"] == [8, 2]
