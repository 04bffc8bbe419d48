"""Sets of images: found by their files, looked at in bounded time, and every fault is told with the image."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.data.pictures import folder
from dp_prior.networks.backbones.unet2d import UNet2DConfig
from dp_prior.run.config import TrainConfig
from dp_prior_studio.inspection import image_survey as looking
from dp_prior_studio.inspection.inspect import inspect, write_config
from dp_prior_studio.pages.data_page import write_inspection
from tests.data.pictures.sets import CLASSES, encoded, images, write_folder, write_npz, write_parquet
from tests.messages import naming, told, told_each
from tests.plugins.dp_prior_studio.inspection.recordings import clean
from tests.plugins.dp_prior_studio.inspection.recordings import write_npz as write_episodes
from tests.plugins.dp_prior_studio.pages.test_report import Outline

pytest.importorskip("PIL", reason="NOT CHECKED: the image extra is not installed")


def place_of(kind, root, pixels, labels):
    """A data set in one of the formats, at the path that is given to `inspect`."""
    if kind in ("folder", "prefix", "csv"):
        return write_folder(root / kind, pixels, labels, kind)["path"]
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="NOT CHECKED: pyarrow is not installed")
        return write_parquet(root / kind, pixels, labels)["path"]
    return write_npz(root / "images.npz", pixels, labels)["path"]


def said(found):
    return [(finding.severity, finding.text) for finding in found.findings]


@pytest.mark.parametrize("kind", ["folder", "prefix", "csv", "npz", "parquet"])
def test_every_format_is_found_by_its_path_with_its_classes(kind, tmp_path):
    pixels, labels = images(12, (8, 12))
    (found,) = inspect(place_of(kind, tmp_path, pixels, labels))
    (seen,) = found.galleries
    assert said(found) == [] and found.data["labels"] is True
    assert seen.counts() == {name: labels.count(name) for name in CLASSES}
    assert np.array_equal(seen.numbers, np.arange(12)) and (seen.sizes == (8, 12)).all()
    for channel in range(3):
        assert np.array_equal(seen.histogram[channel], np.bincount(pixels[..., channel].ravel(), minlength=256))
    outline = Outline(write_inspection([found], tmp_path / "page.html", "set").read_text(encoding="utf-8"))
    assert len(outline.addresses) == 3 and all(address.startswith("data:image/jpeg") for address in outline.addresses)
    assert {"source, class cat", "33.3%", f"{pixels[..., 1].mean():.1f}"} <= set(outline.texts)


def test_pictures_without_the_package_that_reads_them_are_of_no_unknown_format(tmp_path, monkeypatch):
    pixels, labels = images(12, (8, 12))
    place = place_of("folder", tmp_path, pixels, labels)
    (tmp_path / "other").mkdir()

    def missing(extra):
        raise ImportError('pip install "dp_prior[image]"')

    monkeypatch.setattr(folder, "import_pillow", missing)
    with pytest.raises(ImportError, match=naming('pip install "dp_prior[image]"')):
        inspect(place)
    assert looking.images_at(tmp_path / "other") is None


def test_images_without_labels_have_strips_in_their_order(tmp_path):
    pixels, _ = images(40, (8, 8))
    write_folder(tmp_path / "plain", pixels, [str(number) for number in range(40)], "prefix")
    (found,) = inspect(str(tmp_path / "plain"))
    assert "labels" not in found.data and found.galleries[0].counts() == {}
    titles = [title for title, _ in found.galleries[0].strips()]
    assert titles[0].startswith("source, images 0 to ") and titles[-1].endswith(" to 39")


def test_episodes_are_no_set_of_images(tmp_path):
    episodes = clean(3)
    for episode in episodes:
        episode["images"] = np.zeros((len(episode["action"]), 8, 8, 3), np.uint8)
    write_episodes(tmp_path / "episodes.npz", episodes)
    (found,) = inspect(str(tmp_path / "episodes.npz"))
    assert found.survey is not None and not found.galleries


def test_every_fault_is_told_with_the_image(tmp_path):
    pixels, _ = images(60, (8, 8))
    labels = ["cat"] * 55 + ["dog"] * 5
    pixels[3] = 77
    pixels[7] = pixels[6]
    pixels[59] = pixels[8]
    root = tmp_path / "set"
    write_folder(root, pixels, labels)
    (root / "cat/009.png").write_bytes(encoded(pixels[9][:, :4]))
    (root / "cat/010.png").write_bytes(b"no picture")
    (found,) = inspect(str(root))
    (seen,) = found.galleries
    assert len(seen.numbers) == 59
    named = (
        ("error", root / "cat/010.png", "no picture"),
        ("warning", "1 of 59", "cat/003.png", "colour"),
        ("warning", "2 of 59", "cat/006.png", "cat/007.png", "data.split"),
        ("warning", "1 copies", "'cat'", "'dog'", "cat/008.png", "dog/059.png", "label"),
        ("note", "1 of 59", "cat/009.png", "data.size", "8 x 8"),
        ("note", "'dog' (5)", "'cat'", 55),
    )
    for (severity, text), (expected, *parts) in zip(said(found), named, strict=True):
        assert severity == expected and told(text, "source", *parts), text
    with pytest.raises(Exception, match=naming("source", "cat/010.png", "PNG")):
        write_config([found], tmp_path / "first.json")


def configured(tmp_path, pixels, names, **data):
    source = write_npz(tmp_path / "train.npz", pixels, names)
    document = {
        "task": {"type": "image", "backbone": {"type": "unet2d", "channels": 32}},
        "data": {"type": "images", "source": source, **data},
        "train": {"steps": 1},
        "tracker": {"data_path": str(tmp_path / "run")},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    return inspect(str(path))[0]


def test_images_of_a_configuration_are_judged_by_it(tmp_path):
    pixels, labels = images(20, (8, 8))
    grey = np.repeat(pixels[..., :1], 3, axis=-1)
    other, names = images(10, (8, 8), seed=5)
    other[4] = grey[2]
    test = write_npz(tmp_path / "test.npz", other, names)
    found = configured(tmp_path, grey, labels, test_source=test, size=[16, 16])
    assert told_each(
        sorted(text for _, text in said(found)),
        ("1 of 10 images", "test_source", "source", "image 4"),
        ("source", "20 of 20 images", "image 0", "smaller", "data.size", "16 x 16"),
        ("source", "no image", "data.channels 1"),
        ("test_source", "10 of 10 images", "image 0", "smaller", "data.size", "16 x 16"),
    )
    assert {seen.name for seen in found.galleries} == {"source", "test_source"}


def test_images_of_several_sizes_need_the_size_that_a_configuration_leaves_out(tmp_path):
    pixels, labels = images(20, (8, 8))
    root = tmp_path / "set"
    write_folder(root, pixels, labels)
    next(root.rglob("*.png")).write_bytes(encoded(pixels[0][:4]))
    write_config(inspect(str(root)), tmp_path / "first.json")
    document = json.loads((tmp_path / "first.json").read_text())
    document["data"]["size"] = None
    (tmp_path / "second.json").write_text(json.dumps(document))
    (found,) = inspect(str(tmp_path / "second.json"))
    (told_of,) = [text for severity, text in said(found) if severity == "error"]
    assert told(told_of, "source", "2 sizes", "19 of 20", "8 x 8", "data.size")


def test_what_training_refuses_is_an_error(tmp_path):
    pixels, labels = images(20, (8, 8))
    labels[-1] = "newt"
    found = configured(tmp_path, pixels, labels, **{"labels": True, "split": {"train": 0.1, "val": 0.9}})
    severity, text = said(found)[0]
    assert severity == "error" and told(text, "trained")


def test_a_large_set_is_sampled_evenly_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(looking, "MOST_IMAGES", 64)
    pixels, labels = images(500, (4, 4))
    (found,) = inspect(write_npz(tmp_path / "many.npz", pixels, labels)["path"])
    (seen,) = found.galleries
    assert len(seen.numbers) == 64 and (seen.numbers[0], seen.numbers[-1]) == (0, 499)
    assert np.diff(seen.numbers).max() < 2 * 500 / looking.SPANS and sum(seen.counts().values()) == 500
    for number, still in zip(seen.numbers, seen.stills, strict=True):
        assert np.array_equal(still[::16, ::16], pixels[number])
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "many.npz")])
    assert result.exit_code == 0 and "64 looked at, evenly spread" in result.output


def test_reading_stops_after_a_few_damaged_images(tmp_path):
    pixels, labels = images(30, (8, 8))
    root = tmp_path / "set"
    write_folder(root, pixels, labels)
    for path in sorted(root.rglob("*.png"))[5:]:
        path.write_bytes(b"")
    (found,) = inspect(str(root))
    assert len(found.galleries[0].numbers) == 5
    assert [severity for severity, _ in said(found)].count("error") == looking.MOST_NAMED


@pytest.mark.parametrize(
    ("sizes", "size"),
    [([(16, 24)], None), ([(10, 14)], [8, 16]), ([(16, 24), (24, 16)], [16, 24]), ([(99, 300)], [64, 192])],
)
def test_the_proposed_configuration_is_valid_and_fits_the_images(sizes, size, tmp_path, monkeypatch):
    root = tmp_path / "set"
    for number in range(9):
        pixels, labels = images(3, sizes[number % len(sizes)], seed=number)
        for image, label in zip(pixels, labels, strict=True):
            (root / label).mkdir(parents=True, exist_ok=True)
            (root / label / f"{number}.png").write_bytes(encoded(image))
    found = inspect(str(root))
    write_config(found, tmp_path / "first.json")
    config = TrainConfig.from_json_path(tmp_path / "first.json")
    assert config.data.labels and config.data.size == (None if size is None else tuple(size))
    spec = config.data.create().spec
    create = UNet2DConfig.create

    def shaped(*arguments):
        """The network without numbers in it."""
        with torch.device("meta"):
            return create(*arguments)

    monkeypatch.setattr(UNet2DConfig, "create", shaped)
    config.task.create(spec)  # raises if the network does not fit
    assert config.task.label_dropout == 0.1 and spec.x_shape[-1] == 3


@pytest.mark.parametrize(("count", "batch_size"), [(40, 16), (400, 128)])
def test_the_proposed_batch_is_no_larger_than_the_training_part(count, batch_size, tmp_path):
    pixels, labels = images(count, (8, 8))
    write_config(inspect(write_npz(tmp_path / "set.npz", pixels, labels)["path"]), tmp_path / "first.json")
    assert TrainConfig.from_json_path(tmp_path / "first.json").data.batch_size == batch_size


@pytest.mark.slow
def test_the_proposed_configuration_passes_its_check(tmp_path):
    pytest.importorskip("diffusers", reason="NOT CHECKED: the image extra is not installed")
    pixels, labels = images(200, (16, 16))
    write_npz(tmp_path / "set.npz", pixels, labels)
    path = tmp_path / "first.json"
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "set.npz"), "--write-config", str(path)])
    assert result.exit_code == 0, result.output
    place = ["--set", f"tracker.data_path={tmp_path}/run", "--set", "task.sampler.steps=2"]
    result = CliRunner().invoke(main, ["train", "--config_file", str(path), "--check", *place])
    assert result.exit_code == 0 and "one step" in result.output, result.output


def test_the_same_numbers_of_another_shape_are_another_image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    (tmp_path / "set").mkdir()
    for name, image in {"a": pixels, "b": pixels.reshape(12, 8, 3), "c": pixels + 1, "d": pixels}.items():
        (tmp_path / "set" / f"{name}.png").write_bytes(encoded(image))
    (found,) = inspect(str(tmp_path / "set"))
    (text,) = [text for _, text in said(found) if "repeat" in text]
    assert told(text, "1 of 4 images", "a.png", "d.png")
