"""`dp-prior embed`, from a configuration or a file to a policy that acts on texts."""

import csv
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dp_prior import load_policy, load_prior
from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.embeddings.written import read_record
from dp_prior.data.errors import DataError
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.inference.agent import Agent
from dp_prior_foreign.embed import embedder_of, read_rgb
from tests.embedders.models import save_model
from tests.messages import naming, told
from tests.tiny import experiment, tiny, write_data

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = ("go to the left", "go to the right")


def embed(*arguments):
    result = CliRunner().invoke(main, ["embed", *map(str, arguments)])
    return result.exit_code, result.output


def instructed(place, **changes):
    """A tiny configuration whose episodes are told where to go."""
    path = write_data(place / "toy.npz")
    arrays = dict(np.load(path))
    np.savez(path, **arrays, side=np.arange(len(arrays["episode_ends"])) % 2)
    folder = {"path": str(place / "texts"), "format": "parquet"}
    language = {"told": {"key": "side", "texts": TEXTS, "folder": folder}}
    return tiny(place, data__language=language, evaluate=[], **changes)


def write(place, config):
    (place / "config.json").write_text(json.dumps(config))
    return place / "config.json"


@pytest.mark.slow
def test_a_policy_learns_from_embedded_instructions_and_acts_on_texts(tmp_path):
    path = write(tmp_path, config := instructed(tmp_path))
    how = (path, "--key", "told", "--out", tmp_path / "texts")
    assert embed("--model", "hashed:16", *how)[0] == 0
    assert told(embed("--model", "hashed:16", *how)[1], tmp_path / "texts", "complete")
    code, said = embed("--model", "hashed", *how)
    assert code == 64 and told(said, tmp_path / "texts", "embedder", 16, "another folder")
    experiment(config).run()
    policy = load_policy(tmp_path / "run")
    assert policy.spec.embedders == {"told": HashedConfig(dimension=16)}
    here, vectors = {"agent_pos": np.zeros(2), "goal": np.ones(2)}, HashedConfig(dimension=16).create().texts(TEXTS)
    here = {key: np.stack([value, value]) for key, value in here.items()}
    given = (*TEXTS, *(np.stack([vector, vector]) for vector in vectors))
    chunks = [
        [Agent(policy, seed=seed).infer({**here, "told": value})["chunk"] for seed in range(8)] for value in given
    ]
    np.testing.assert_array_equal(chunks[:2], chunks[2:])
    assert not np.array_equal(chunks[0], chunks[1])  # most are at their limits: the network is hardly trained
    mean, scale = (policy.normalizer.get_buffer(f"told/{name}") for name in ("mean", "scale"))
    sides = (torch.from_numpy(vectors) - mean) * scale  # similar texts become far apart
    assert sides.abs().max() > 0.5 and sides[0] @ sides[1] < 0


def test_texts_of_files_keep_their_rows_and_columns(tmp_path):
    with open(tmp_path / "captions.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [["image_id", "caption"], ["a", 'a "dog", in\nsnow'], ["b", "a cat"], ["b", "a cat"]]
        )
    code, said = embed(
        "--model", "hashed", "--texts", tmp_path / "captions.csv", "--column", "caption", "--out", tmp_path / "c"
    )
    assert code == 0, said
    folder = FolderConfig(path=str(tmp_path / "c"), format="parquet").create()
    (part,) = folder.columns(["caption", "image_id"])
    assert part["caption"].tolist() == ['a "dog", in\nsnow', "a cat", "a cat"] and part["image_id"].tolist() == [
        "a",
        "b",
        "b",
    ]
    np.testing.assert_array_equal(folder.rows.read(0, 3), HashedConfig().create().texts(part["caption"]))
    (tmp_path / "t.txt").write_text("a dog\na cat\na bird\n")
    assert embed("--model", "hashed", "--texts", tmp_path / "t.txt", "--out", tmp_path / "t")[0] == 0
    record = {"path": str(tmp_path / "t"), "format": "parquet"}
    pairs = EmbeddingsConfig.from_json(json.dumps({"image": record, "text": record})).create()  # a prior reads them
    assert pairs.spec.x_shape == (64,) and sum(map(len, (pairs.train, pairs.val, pairs.test))) == 3


@pytest.mark.slow
def test_camera_frames_become_observations(tmp_path):
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    model = save_model(tmp_path / "clip", "clip")
    path = write_data(tmp_path / "toy.npz")
    arrays = dict(np.load(path))
    frames = np.random.default_rng(0).integers(0, 256, (len(arrays["state"]), 16, 16, 3), np.uint8)
    np.savez(path, **arrays, view=frames)
    seeing = tiny(tmp_path, data__images={"front": {"key": "view", "size": [16, 16]}})
    how = ("--config_file", write(tmp_path, seeing), "--key", "front", "--out", tmp_path / "seen")
    code, said = embed("--model", model, *how)
    assert code == 0, said
    folder = {"path": str(tmp_path / "seen"), "format": "parquet"}
    reading = tiny(tmp_path, data__embeddings={"front": {"folder": folder}}, train__steps=2, evaluate=[])
    data = (run := experiment(reading)).parts.data
    first = data.train.fetch(torch.tensor([0]))
    assert first.cond["front"].shape == (1, 2, 6)
    row = int(np.argmin(np.abs(arrays["state"][:, :2] - first.cond["agent_pos"][0, 1].numpy()).sum(1)))
    expected = read_record(tmp_path / "seen").embedder.create().frames(frames[row : row + 1])[0]
    np.testing.assert_allclose(first.cond["front"][0, 1], expected, atol=1e-5)
    run.run()
    code, said = embed("--model", save_model(tmp_path / "other", "clip", seed=1), *how)
    assert code == 64 and told(said, tmp_path / "seen", "embedder", "another folder")


@pytest.mark.slow
def test_pictures_of_a_table_are_embedded_row_by_row(tmp_path):
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), np.uint8)
    Image.fromarray(pixels[0]).save(tmp_path / "a.png")
    Image.fromarray(pixels[1]).save(tmp_path / "b.png")
    Image.fromarray(pixels[2, ..., 0]).save(tmp_path / "grey.png")  # pictures of several sizes and modes
    (tmp_path / "t.csv").write_text("view,n\na.png,1\nb.png,2\na.png,3\ngrey.png,4\n")
    model, how = save_model(tmp_path / "clip", "clip"), ("--images", tmp_path / "t.csv", "--column", "view")
    code, said = embed("--model", model, *how, "--out", tmp_path / "e")
    assert code == 0, said
    folder = FolderConfig(path=str(tmp_path / "e"), format="parquet").create()
    (part,) = folder.columns(["view", "n"])
    assert part["view"].tolist() == ["a.png", "b.png", "a.png", "grey.png"] and part["n"].tolist() == [1, 2, 3, 4]
    embedder = read_record(tmp_path / "e").embedder.create()
    expected = [pixels[0], pixels[1], pixels[0], np.repeat(pixels[2, ..., :1], 3, axis=-1)]
    expected = np.concatenate([embedder.frames(one[None]) for one in expected])
    np.testing.assert_array_equal(folder.rows.read(0, 4), expected)
    assert told(embed("--model", model, *how, "--out", tmp_path / "e")[1], tmp_path / "e", "complete")
    Image.fromarray(pixels[2]).save(tmp_path / "a.png")  # another picture of the same name
    code, said = embed("--model", model, *how, "--out", tmp_path / "e")
    assert code == 64 and told(said, tmp_path / "e", "source", "another folder")
    (tmp_path / "b.png").unlink()
    code, said = embed("--model", model, *how, "--out", tmp_path / "other")
    assert code == 65 and told(said, "row 1", tmp_path / "b.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    code, said = embed("--model", model, *how, "--out", tmp_path / "other")
    assert code == 65 and told(said, tmp_path / "b.png", "b'no picture'", "PNG")


def test_captions_of_metadata_become_what_a_prior_conditions_on(tmp_path):
    """The file that Hugging Face's image folders have: pictures, their embeddings, and encodings of all tokens."""
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    Image = pytest.importorskip("PIL.Image")
    texts = ["push the block", "up", "push left"]
    for number in range(3):
        Image.fromarray(np.full((16, 16, 3), 80 * number, np.uint8)).save(tmp_path / f"{number}.png")
    lines = [json.dumps({"file_name": f"{number}.png", "text": text}) for number, text in enumerate(texts)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    model, table = save_model(tmp_path / "clip", "clip"), tmp_path / "metadata.jsonl"
    for kind, how in (
        ("images", ("--images", table, "--column", "file_name")),
        ("texts", ("--texts", table)),
        ("tokens", ("--texts", table, "--tokens")),
    ):
        code, said = embed("--model", model, *how, "--out", tmp_path / kind)
        assert code == 0, said
    folders = {kind: {"path": str(tmp_path / kind), "format": "parquet"} for kind in ("images", "texts", "tokens")}
    pairs = EmbeddingsConfig(
        image=folders["images"], text=folders["texts"], text_encodings={**folders["tokens"], "tokens": 8},
        split={"train": 1.0, "val": 0.0},
    ).create()  # fmt: skip
    assert pairs.spec.cond_shapes == {"text": (6,), "text_encodings": (8, 16)}
    assert not any(
        "of rows" in line or "row group" in line for line in pairs.warnings()
    )  # of other rows per file, or too large groups
    batch = pairs.train.fetch(torch.arange(3))
    embedder = read_record(tmp_path / "tokens").embedder.create()
    torch.testing.assert_close(batch.cond["text_encodings"], torch.from_numpy(embedder.encodings(texts)))
    (part,) = FolderConfig(**folders["tokens"]).create().columns(["file_name"])
    assert part["file_name"].tolist() == ["0.png", "1.png", "2.png"]
    code, said = embed("--model", "hashed", "--texts", table, "--tokens", "--out", tmp_path / "other")
    assert code == 64 and told(said, "tokens", "CLIP")
    assert embed("--model", model, "--images", table, "--tokens", "--out", tmp_path / "other")[0] == 2
    code, said = embed("--model", model, "--texts", table, "--out", tmp_path / "tokens")
    assert code == 64 and told(said, tmp_path / "tokens", "source", "another folder")
    data = {"type": "embeddings", "image": folders["images"], "text": folders["texts"], "batch_size": 3}
    data |= {"text_encodings": {**folders["tokens"], "tokens": 8}, "split": {"train": 1.0, "val": 0.0}}
    task = {"type": "prior", "backbone": {"type": "prior_transformer", "embed_dim": 8, "n_layers": 1, "n_heads": 2}}
    task |= {"sampler": {"type": "ddim", "steps": 2}, "diffusion": {"schedule": {"type": "cosine", "steps": 10}}}
    train = {"steps": 2, "monitor": {"metric": "fit/ema/loss"}}
    fit = {"type": "loss", "name": "fit", "split": "train"}
    where = {"data_path": str(tmp_path / "run"), "log": []}
    config = {"task": task, "data": data, "train": train, "evaluate": [fit], "tracker": where}
    experiment(config).run()
    prior = load_prior(tmp_path / "run")
    embedder = prior.spec.embedders["text"].create()  # that of the captions, from the run alone
    found = prior.predict(embedder.texts(texts), text_encodings=embedder.encodings(texts))
    stored = prior.predict(batch.cond["text"], text_encodings=batch.cond["text_encodings"])
    torch.testing.assert_close(found, stored, atol=1e-5, rtol=0)
    assert not torch.allclose(
        found, prior.predict(embedder.texts(texts), text_encodings=embedder.encodings(["up"] * 3))
    )


def test_the_instructions_of_a_robot_that_alone_has_them_are_embedded(tmp_path):
    write(tmp_path, config := instructed(tmp_path))
    instructed_set = {field: config["data"][field] for field in ("episodes", "obs", "action", "language")}
    silent_set = {field: instructed_set[field] for field in ("episodes", "obs", "action")}
    data = {"type": "bodies", "sets": {"silent": silent_set, "instructed": instructed_set}}
    joint = {**config, "task": {**config["task"], "type": "bodies"}, "data": data}
    (tmp_path / "joint.json").write_text(json.dumps(joint))
    for name in ("joint", "config"):
        arguments = ("--config_file", tmp_path / f"{name}.json", "--key", "told", "--out", tmp_path / name)
        code, output = embed("--model", "hashed", *arguments)
        assert code == 0, output
    names = {path.relative_to(tmp_path / "config") for path in (tmp_path / "config").rglob("*") if path.is_file()}
    assert names
    for name in names:
        assert (tmp_path / "joint" / name).read_bytes() == (tmp_path / "config" / name).read_bytes()


def test_what_cannot_be_embedded_is_one_clear_line(tmp_path):
    path = write(tmp_path, given := instructed(tmp_path))
    out = ("--out", tmp_path / "e")
    (tmp_path / "t.txt").write_text("a dog\n \n")
    (tmp_path / "c.csv").write_text("caption,embedding\na,1\n")
    (tmp_path / "p.csv").write_text("image\nlost.png\n.\n")
    texts = ("--texts", tmp_path / "t.txt")
    one = {field: given["data"][field] for field in ("episodes", "obs", "action", "language")}
    mixed = {**given, "data": {"type": "mixture", "sets": {"one": one, "two": one}}}
    (tmp_path / "m.json").write_text(json.dumps(mixed))
    for arguments, code, *named in (
        (("--config_file", tmp_path / "m.json", "--key", "told"), 64, "'one', 'two'", "'told'", "--texts"),
        (("--config_file", tmp_path / "m.json", "--key", "tell"), 64, "data.language", "'tell'", "told"),
        (("--config_file", path, "--key", "side"), 64, "data.language", "data.images", "'side'", "told"),
        (("--config_file", path), 2, "--texts", "--images", "CONFIG"),
        ((*texts, path, "--key", "told"), 2, "--texts", "--images", "CONFIG"),
        ((*texts, "--images", path), 2, "--texts", "--images", "CONFIG"),
        (("--images", tmp_path / "c.csv"), 65, "'image'", "caption"),
        (("--images", tmp_path / "p.csv"), 65, "2 problems", "row 0", tmp_path / "lost.png", "row 1", tmp_path),
        (texts, 65, "row 1", "empty"),
        (("--texts", tmp_path / "c.csv"), 65, "'text'", "caption"),
        (("--texts", tmp_path / "c.csv", "--column", "caption"), 65, "'embedding'"),
    ):
        found, said = embed("--model", "hashed", *arguments, *out)
        assert found == code, said
        assert told(said, *named), said
    (tmp_path / "t.txt").write_text("a dog\n")
    code, said = embed("--model", tmp_path / "none", *texts, *out)
    assert code == 64 and told(said, tmp_path / "none")
    assert not (tmp_path / "e").exists()


def test_a_model_that_does_not_read_what_it_is_given_is_one_clear_line(tmp_path):
    frames = np.zeros((4, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "toy.npz", state=np.eye(4), action=np.eye(4, 2), frames=frames, episode_ends=[2, 4])
    path = write(tmp_path, tiny(tmp_path, data__images={"front": {"key": "frames", "size": [8, 8]}}))
    (tmp_path / "t.txt").write_text("a dog\n(!)\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    texts = ("--texts", tmp_path / "t.txt")
    for model, arguments, parts in (
        ("hashed", ("--config_file", path, "--key", "front"), ("texts", "reads frames")),
        ("hashed", texts, ("'(!)'", "letter", "digit")),
        (tmp_path / "model", texts, ("no model", "transformers")),
    ):
        code, said = embed("--model", model, *arguments, "--out", tmp_path / "e" / str(len(parts)))
        assert code == 64 and told(said, f"error: --model {model}: 1 problem", *parts), said


def test_texts_of_a_csv_are_embedded_as_they_are_written(tmp_path):
    written = ["007", "1.50", "true", "2024-01-01"]
    for texts in (written[:1], written[1:2], written[2:3], written[3:], written):
        rows = "".join(f"{text},{number}\n" for number, text in enumerate(texts))
        (tmp_path / "t.csv").write_text(f"caption,image\n{rows}")
        out = tmp_path / f"e{texts}"
        code, said = embed("--model", "hashed", "--texts", tmp_path / "t.csv", "--column", "caption", "--out", out)
        assert code == 0, said
        table = parquet.read_table(next(out.glob("*.parquet")))
        assert table.column("caption").to_pylist() == texts
        found = np.stack(table.column("embedding").to_numpy())
        assert np.array_equal(found, HashedConfig().create().texts(texts))


def test_the_lines_of_a_text_file_end_where_editors_end_them(tmp_path):
    texts = ["a dog", "a\u2028cat\x0cand\x85more", "the end"]
    (tmp_path / "t.txt").write_bytes("\r\n".join(texts).encode("utf-8-sig"))
    code, said = embed("--model", "hashed", "--texts", tmp_path / "t.txt", "--out", tmp_path / "e")
    assert code == 0, said
    assert parquet.read_table(next((tmp_path / "e").glob("*.parquet"))).column("text").to_pylist() == texts


def test_the_ending_of_a_file_says_what_it_holds(tmp_path):
    for name, code, parts in (
        ("t.CSV", 0, ("2 of 2 rows",)),
        ("t.tsv", 65, ("t.tsv: 1 problem", "table", ".txt", ".csv", ".jsonl", ".parquet")),
        ("t.jsonl", 65, ("t.jsonl: 1 problem", "read")),
    ):
        (tmp_path / name).write_text("caption\na dog\na cat\n")
        how = ("--texts", tmp_path / name, "--column", "caption", "--out", tmp_path / f"of {name}")
        found, said = embed("--model", "hashed", *how)
        assert found == code and told(said, *parts), said


def test_texts_in_another_encoding_or_of_another_type_are_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes("caption\ngr\xfcn\n".encode("latin-1"))
    pictures = [{"bytes": b"x", "path": None}]
    parquet.write_table(pyarrow.table({"caption": [b"gr\xfcn"], "image": pictures}), tmp_path / "t.parquet")
    for given, parts in (
        (("--texts", tmp_path / "t.csv", "--column", "caption"), ("t.csv: 1 problem", "UTF8")),
        (("--texts", tmp_path / "t.parquet", "--column", "caption"), ("row 0", "caption", "bytes", "text")),
        (("--images", tmp_path / "t.parquet"), ("row 0", "image", "dict", "text", "UTF-8")),
    ):
        code, said = embed("--model", "hashed", *given, "--out", tmp_path / "e")
        assert code == 65 and told(said, *parts), said


def test_frames_of_chosen_episodes_keep_the_numbers_of_all(tmp_path):
    """Embeddings of all episodes serve any choice, and those of some serve the choice that they were made with."""
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    model, path = save_model(tmp_path / "clip", "clip"), write_data(tmp_path / "toy.npz")
    arrays = dict(np.load(path))
    frames = np.random.default_rng(0).integers(0, 256, (len(arrays["state"]), 16, 16, 3), np.uint8)
    np.savez(path, **arrays, view=frames)
    choice, conditions = {"leave_out": [0, 2]}, {}
    for name, chosen in (("all", {}), ("some", choice)):
        seeing = tiny(tmp_path, data__images={"front": {"key": "view", "size": [16, 16]}}, data__choice=chosen)
        code, said = embed(
            "--model", model, "--config_file", write(tmp_path, seeing), "--key", "front", "--out", tmp_path / name
        )
        assert code == 0, said
        folder = {"path": str(tmp_path / name), "format": "parquet"}
        record = tiny(tmp_path, data__embeddings={"front": {"folder": folder}}, data__choice=choice, evaluate=[])
        data = experiment(record).parts.data
        conditions[name] = data.train.fetch(torch.arange(len(data.train))).cond["front"]
    torch.testing.assert_close(conditions["all"], conditions["some"])


def test_the_number_of_texts_that_are_cut_is_said_and_kept(tmp_path):
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    long = " ".join(["push"] * 30)
    (tmp_path / "t.txt").write_text(f"push\n{long} left\n{long} right\n")
    code, said = embed(
        "--model", save_model(tmp_path / "m", "clip"), "--texts", tmp_path / "t.txt", "--out", tmp_path / "e"
    )
    assert code == 0 and told(said, "2 of 3 texts") and "'push push" in said
    assert read_record(tmp_path / "e").cut == 2
    code, said = embed("--model", "hashed", "--texts", tmp_path / "t.txt", "--out", tmp_path / "h")
    assert "longer" not in said and "cut" not in (tmp_path / "h" / "embedder.json").read_text()


def test_any_picture_is_read_as_rgb_from_a_file(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 24, 3), np.uint8)
    for mode in ("L", "RGBA", "P", "1", "CMYK"):
        file = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
        Image.fromarray(pixels).convert(mode).save(file)
        picture = read_rgb(file)
        assert picture.shape == pixels.shape and picture.dtype == np.uint8
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(DataError, match=naming("a.png", "PNG", "JPEG")):
        read_rgb(tmp_path / "a.png")


def test_a_model_is_named_by_a_dimension_or_a_folder():
    assert embedder_of("hashed") == HashedConfig() and embedder_of("hashed:16") == HashedConfig(dimension=16)
    for bad, *found in (("hashed:1", "dimension", 8), ("hashed:many", "line 1", "column 15")):
        with pytest.raises(ConfigError, match=naming(bad, *found)):
            embedder_of(bad)
