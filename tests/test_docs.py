"""What the pages say can be copied: configurations are valid, Python runs, commands, settings, tests and links exist.

A JSON block that gives `data` and `train` is a whole configuration. Any other is laid over the whole one before it on
its page, or that of README.md, or one in configs if it is about a prior or images; a part of another `type` replaces
its own. A Python block that begins with a comment of a file's name is such a file and is not run.
"""

import contextlib
import functools
import itertools
import json
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import HfApi

from dp_prior import load_policy
from dp_prior.cli import main
from dp_prior.config.errors import ConfigError
from dp_prior.inference import plans
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.run.assembly import Assembly
from dp_prior.run.config import TrainConfig
from dp_prior.run.descriptions import truly_described
from dp_prior.run.plan import plan
from dp_prior.run.run import Run
from dp_prior.tracking.tracker import Tracker
from dp_prior_studio.inspection.inspect import inspect, write_config
from tests import test_image, test_prior
from tests.cli.invoked import all_commands
from tests.embedders.models import save_model
from tests.faults import assert_none
from tests.inference.test_text_tower import folder as text_tower  # noqa: F401 (a fixture)
from tests.networks.backbones.test_unet1d import PlainUNet
from tests.prose import GENERATED

ROOT = Path(__file__).parent.parent
PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "demonstrations/*.md")
    for path in sorted(ROOT.glob(pattern))
]
WRITTEN = [page for page in PAGES if page not in GENERATED | {"CHANGELOG.md"}]
EMBEDDED = [ROOT / "configs/policy/pusht_state.json", [f"data.episodes.path={ROOT / 'demonstrations/pusht.npz'}"]]
FENCES = ("json", "bash", "python")
TASKS = {  # by the types of its task and its data
    ("prior", "embeddings"): ROOT / "configs/prior/clip_embeddings.json",
    ("image", "images"): ROOT / "configs/image/digits.json",
}


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> Iterator[tuple[str, str, str]]:
    """(language, where, text) of the fenced blocks of a page in these languages."""
    text = text_of(page)
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if found[1] in languages:
            yield found[1], f"{page}:{text[: found.start()].count(chr(10)) + 2}", found[2]


def configurations(page: str) -> Iterator[tuple[str, dict]]:
    """(where, configuration) of the JSON blocks of a page."""
    whole = None
    for _, where, text in blocks(page, "json"):
        given = json.loads(text if text.startswith("{") else f"{{{text}}}")
        if "keys" in given:  # topics of bags, see data/formats/ros2/test_topics.py
            continue
        given.pop("extends", None)  # it is what the block is laid over
        if {"data", "train"} <= given.keys():
            whole = given
        named = {given.get(part, {}).get("type") for part in ("task", "data")}
        task = next((path for types, path in TASKS.items() if named & {*types}), None)
        if task is not None:
            base = json.loads(task.read_text(encoding="utf-8"))
        else:
            base = whole or next(found for _, found in configurations("README.md"))
        yield where, laid_over(base, given)


def laid_over(base: dict, given: dict) -> dict:
    """`base` with the keys of `given` in place of its own, part by part."""
    if "type" in given and given["type"] != base.get("type"):
        return given
    parts = {
        key: laid_over(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in given.items()
    }
    return base | parts


def test_configurations_are_valid():
    faults = []
    for where, config in itertools.chain.from_iterable(map(configurations, PAGES)):
        try:
            TrainConfig.from_json(json.dumps(config), source=where)
        except ConfigError as error:  # which names the page and the line
            faults.append(str(error))
    assert_none(faults)


@functools.cache
def a_setting() -> re.Pattern[str]:
    """Matches the path of any setting, as docs/config.md has them."""
    paths = {"train", "data", "task", "evaluate", "test", "checkpoints", "tracker"}
    for section in text_of("docs/config.md").split("\n## ")[1:]:
        places = re.findall(r"`([^`]+)`", next(iter(re.findall(r"^At .*\.$", section, re.MULTILINE)), ""))
        fields = ["type", *re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)]
        paths |= {*places, *(f"{place}.{field}" for place in places or [""] for field in fields)}
    words = (re.escape(path.lstrip(".")).replace("<name>", r"\w+").replace("<index>", r"\d+") for path in paths)
    return re.compile("|".join(words))


def named_settings(page: str) -> Iterator[str]:
    text = text_of(page)
    yield from re.findall(r"--set '?([\w.]+)=", text)
    for name in re.findall(r"`((?:task|data|train|evaluate|test|checkpoints|tracker)\.[\w.]+)`", text):
        if not name.endswith((".json", ".py", ".md")) and name != "data.fingerprint":
            yield name


def test_settings_that_are_named_exist():
    named = [(page, name) for page in WRITTEN for name in named_settings(page)]
    assert_none(f"{page}: there is no setting {name}" for page, name in named if not a_setting().fullmatch(name))


def wrong_commands(page: str) -> Iterator[str]:
    text = text_of(page).replace("\\\n", " ").replace("train_policy.py --", "dp-prior train --")
    for line in re.findall(r"dp-prior ([a-z][\w-]*\b[^`\n]*)", text):
        command: click.Command = main
        words = line.split()
        commands = all_commands()
        while words and words[0] in commands:
            command = commands[words.pop(0)]
            commands = command.commands if isinstance(command, click.Group) else {}
        if isinstance(command, click.Group):
            yield f"{page}: dp-prior {line}: no such command; expected one of {', '.join(commands)}"
            continue
        known = {option for parameter in command.params for option in parameter.opts}
        asked = set(re.findall(r"(?<= )--[a-z_-]+", f" {' '.join(words)}".partition(" # ")[0]))
        for option in sorted(asked - known):
            yield f"{page}: dp-prior {line}: no option {option}"


def test_commands_that_are_named_exist_with_their_options():
    assert_none(fault for page in WRITTEN for fault in wrong_commands(page))


def test_every_command_is_in_the_table_of_the_index():
    table = text_of("docs/index.md").partition("## Commands")[2]
    shown = {name for name, command in all_commands().items() if not command.hidden}
    assert {*re.findall(r"`dp-prior ([a-z-]+)[ `]", table)} == shown
    assert len(shown) <= 20


def dead_links(page: str) -> Iterator[str]:
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        if not there.exists():
            yield f"{page} links to {target}, which does not exist"
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            if anchor not in [re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in headings]:
                yield f"{page} links to {target}, where there is no such heading"


def test_links_lead_somewhere():
    assert_none(fault for page in PAGES for fault in dead_links(page))


def missing_names(page: str) -> Iterator[str]:
    text = text_of(page)
    for name in re.findall(r"`((?:dp_prior|tests|configs|docs|benchmarks|scripts|demonstrations)/[\w./-]+)", text):
        if not (ROOT / name).exists() and not name.startswith("demonstrations/pusht_embeddings"):
            yield f"{page} names {name}: there is no such file"
    for name in re.findall(r"(?:`|::)(test_\w+?)(?:_?\.\.\.|`)", text):
        if not any(known.startswith(name) for known in all_tests()):
            yield f"{page} names {name}: there is no such test"


def test_files_and_tests_that_are_named_exist():
    assert_none(fault for page in PAGES for fault in missing_names(page))


@functools.cache
def all_tests() -> set[str]:
    """Names of the test functions."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    return {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}


def test_lines_have_at_most_120_characters_outside_of_tables():
    numbered = [(page, number, line) for page in WRITTEN for number, line in enumerate(text_of(page).splitlines(), 1)]
    long = [(page, number, line) for page, number, line in numbered if len(line) > 120 and not line.startswith("|")]
    assert_none(
        f"{page}:{number} has {len(line)} characters, at most 120 are read in a terminal" for page, number, line in long
    )


def run_page(page: str, names: dict) -> dict:
    """Run the Python of a page block after block with these names at hand, and train what is whole in between."""
    names |= {"__name__": page}
    trained = page == "docs/own_data.md"
    for language, where, text in blocks(page, "python", "json"):
        if language == "python":
            code = compile(text, where, "exec")
            if not text.startswith("# "):
                exec(code, names)
        elif trained and '"data": {' in text and '"train": {' in text:
            config = TrainConfig.from_json(text, ["data.global_batch_size=16", "train.samples=32"])
            Path("mine.json").write_text(config.to_json())
            Run(config, report=lambda line: None).run()
    return names


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def in_torch(monkeypatch):
    """Agents act in torch: the export of the network takes 15 CPU seconds once a machine, and is kept at home."""
    listeners = plans.listeners
    monkeypatch.setattr(plans, "listeners", lambda event: [] if event == "runtimes" else listeners(event))


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """A working directory as ./demo leaves it but for what it learned."""
    path, overrides = EMBEDDED
    short = [
        "train.samples=16",
        "data.global_batch_size=16",
        "data.split.max_train_episodes=2",
        "evaluate=[]",
        "test=[]",
    ]
    with contextlib.chdir(directory := tmp_path_factory.mktemp("demo")):
        Run(TrainConfig.from_json_path(path, [*overrides, *short]), report=lambda line: None).run()
    return directory


@pytest.fixture
def embedded(demo, place) -> Path:
    """`runs/pusht_state` of a copy of it."""
    shutil.copytree(demo, place, dirs_exist_ok=True)
    return place / "runs/pusht_state"


def test_the_first_run_prints_the_plan_that_its_page_shows(tmp_path, monkeypatch):
    pytest.importorskip("gym_pusht", reason="NOT CHECKED: the extra dp_prior[pusht] is not installed")
    monkeypatch.chdir(ROOT)
    path, _ = EMBEDDED
    config = truly_described(TrainConfig.from_json_path(path, ["train.samples=50000"]))
    parts = Assembly(config, Ranks(make_accelerator("fp32", 120)), report=lambda line: None, directory=tmp_path)
    trainer = parts.trainer(Tracker(tmp_path, config.tracker), None)
    parts.choose_compilation(trainer)
    printed = plan(config, parts, trainer, None).splitlines()
    shown = next(text for _, _, text in blocks("docs/first_run.md", "text")).splitlines()[: len(printed)]
    for line, actual in zip(shown, printed, strict=True):
        if not line.startswith("  config"):  # a hash, which any new setting changes
            assert actual.startswith(line.partition(" ...")[0].partition(" on 1 x")[0])


@pytest.mark.parametrize("page", ["README.md", "docs/acting.md"])
def test_what_the_demo_trains_acts_as_told(embedded, page):
    assert run_page(page, {"state": np.zeros(5)})["action"].shape == (2,)


@pytest.mark.slow
def test_own_data_become_a_policy_that_acts(place):
    draw = np.random.default_rng(0)
    episodes = [{"state": draw.normal(size=(n, 4)), "action": draw.normal(size=(n, 2))} for n in (20, 30, 25)]
    names = run_page("docs/own_data.md", {"episodes": episodes, "robot": np.zeros(2), "object_": np.zeros(2)})
    assert names["action"].shape == (2,)
    assert names["outcome"].status == "finished" and names["score"] > 0


def test_first_settings_train_in_the_directory_that_the_page_names(place):
    np.savez("mine.npz", state=np.ones((20, 4)), action=np.ones((20, 2)), episode_ends=[10, 20])
    write_config(inspect("mine.npz"), path := Path("mine.json"))
    assert f"`{TrainConfig.from_json_path(path).tracker.data_path}`" in text_of("docs/own_data.md")


def test_published_weights_load_as_told(embedded):
    policy = load_policy(embedded)
    tokens, dim = policy.encoder.cond_shape
    plain = PlainUNet(2, tokens * dim, dims=(32, 64, 128), g=8, e=64)
    published = {f"model.{name}": value for name, value in plain.state_dict().items()}
    names = run_page("docs/networks.md", {"policy": policy, "published": published})
    assert torch.equal(names["unet"].state_dict()["head.out.bias"], plain.final_conv[1].bias)


def test_priors_predict_as_told(place, text_tower, monkeypatch):  # noqa: F811
    monkeypatch.setattr(test_prior, "DIM", 6)
    config = test_prior.tiny(place, train__steps=1, evaluate=[], test=[], tracker__data_path="runs/clip_embeddings")
    Run(TrainConfig.from_json(json.dumps(config)), report=lambda line: None).run()
    text_tower.rename(place / "clip-vit-base-patch32")
    names = run_page("docs/prior.md", {"text_embed": torch.randn(3, 6)})
    assert names["image_embed"].shape == (1, 6)


@pytest.mark.slow
def test_captions_and_pictures_become_a_prior_by_the_commands_told(place):
    """All of them as they stand, on a tiny CLIP with random weights and for a few steps."""
    pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    Image = pytest.importorskip("PIL.Image")
    save_model(place / "openai/clip-vit-base-patch32", "clip")
    (place / "pictures").mkdir()
    words, rows = ("push", "the", "block", "left", "right", "up"), ["image,caption"]
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"pictures/{number}.jpg")
        rows += [f"pictures/{number}.jpg,{words[number % 6]} {words[number % 5]} {again}" for again in ("up", "left")]
    (place / "captions.csv").write_text("\n".join(rows))
    (place / "configs").symlink_to(ROOT / "configs")
    section = text_of("docs/prior.md").partition("## From captions and pictures")[2]
    told = {language: re.search(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)[1] for language in FENCES}
    (place / "captions.json").write_text(told["json"])
    few = ["train.samples=64", "train.lr.warmup_steps=1", "data.global_batch_size=8", "task.backbone.embed_dim=16"]
    few += ["evaluate.0.every.samples=32", "evaluate.1.every.samples=32"]
    for line in told["bash"].replace("accelerate launch train_policy.py", "dp-prior train").splitlines():
        command = line.split()[1:]
        command += [part for each in few for part in ("--set", each)] if command[0] == "train" else []
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, f"{line}: {done.output}"
    assert "test/ema/similarity_with_original_image[steps=64]" in done.output
    names: dict = {}
    exec(compile(told["python"], "docs/prior.md", "exec"), names)
    assert names["image_embed"].shape == (1, 6) and names["image_embed"].norm() == pytest.approx(1)
    embedded = names["prior"].spec.embedders["text"].create().texts(["a dog in the snow"])
    np.testing.assert_array_equal(names["captions"]["text"], embedded)


def test_images_are_drawn_as_told(place):
    config = test_image.tiny(place, train__steps=1, evaluate=[], test=[], tracker__data_path="runs/digits")
    Run(TrainConfig.from_json(json.dumps(config)), report=lambda line: None).run()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 2, 32, 32, 3), np.uint8)
    names = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    (place / "cifar-10-batches-py").mkdir()
    for name, images in zip(names, pixels, strict=True):  # as the archive has them: all red numbers, green, blue
        batch = {b"data": images.transpose(0, 3, 1, 2).reshape(2, -1), b"labels": [3, 7]}
        (place / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(batch))
    assert run_page("docs/images.md", {})["images"].shape == (3, 8, 8, 3)
    for part, images in (("train", pixels[:5]), ("test", pixels[5:])):
        stored = np.load(place / f"data/cifar10/{part}.npz")
        np.testing.assert_array_equal(stored["images"], images.reshape(-1, 32, 32, 3))
        assert stored["labels"].tolist() == [3, 7] * len(images)


def test_policies_come_from_the_hub_and_go_there_as_told(hub, embedded):
    load_policy(embedded).push_to_hub("me/pusht")
    sent = embedded / "checkpoints/step_00000001"
    HfApi().upload_folder(repo_id="me/pusht", folder_path=sent, path_in_repo="checkpoints/step_00012000")
    names = run_page("docs/hub.md", {})
    weights = load_policy("exports/pusht").state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in names["policy"].state_dict().items())


def test_a_robot_acts_in_real_time_as_told(embedded):
    class Robot:
        sent = []

        def observe(self):
            return {"agent_pos": np.full(2, 200.0), "state": np.full(5, 200.0)}

        def send(self, action):
            self.sent.append(action)

    run_page("docs/realtime.md", {"robot": Robot()})
    sent = np.array([np.full(2, 200.0), *Robot.sent[20:]])
    assert len(sent) > 100 and np.isfinite(sent).all() and (sent >= 0).all() and (sent <= 512).all()
    assert np.abs(np.diff(sent, axis=0)).max() * 500 <= 400 + 1e-6
    assert np.abs(np.diff(sent[[*range(len(sent)), -1]], 2, axis=0)).max() * 500**2 <= 2000 + 1e-3  # also at the end


def test_runs_trackers_and_trainers_work_from_python_as_told(place, monkeypatch, capsys):
    text = text_of("docs/python.md")
    for long, short in (("100_000", "128"), ('"n_episodes": 25', '"n_episodes": 2'), ("5_000", "500")):
        assert text.count(long) == 1
        text = text.replace(long, short)
    names: dict = {"__name__": "python.md"}
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        exec(compile(code, "docs/python.md", "exec"), names)
    assert names["outcome"].status == "finished" and names["outcome"].samples_seen == 128 and names["losses"]
    assert names["action"].shape == (2,)
    assert "step 100  100 samples  loss 0.01" in capsys.readouterr().out
    assert len((place / "runs/loop/metrics.csv").read_text().splitlines()) == 101
    assert names["average"](names["Pairs"]().fetch(torch.arange(9))).shape == (9,)
    trainer = names["trainer"]
    assert trainer.progress.samples_seen == 10_000 and trainer.best.step > 10 and trainer.best.value < 0.1


def test_every_page_with_python_is_run():
    names = ("acting", "own_data", "networks", "prior", "images", "hub", "realtime", "python")
    run = {"README.md", *(f"docs/{name}.md" for name in names)}
    snippets = {page for page in PAGES for _, _, text in blocks(page, "python") if not text.startswith("# ")}
    assert snippets == run
