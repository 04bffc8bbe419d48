"""The translation by a table: entries, order, outcomes."""

from dp_prior.config.translation.library import Library
from dp_prior.config.translation.row import Here, NoCounterpart, Row, fixed
from dp_prior.config.translation.translate import TO_FILL_IN, translate


def refused(value, theirs, *names):
    raise NoCounterpart(f"{value} is too much")


SMALL = Library(
    key="small",
    name="Small",
    link="https://example.org",
    about="A small library.",
    rows=(
        Row("lr", "train.lr.peak"),
        Row("nets.*.width", "task.encoders.<name>.width", "", lambda w, t, n: Here({f"task.encoders.{n}.width": w})),
        Row("every", "evaluate.<loss>.every.steps"),
        Row("films", "evaluate.<rollout>.videos"),
        Row("size", "data.size", "", refused),
        Row("debug", "", "there is none"),
        fixed("mode", "usual", "one mode alone"),
    ),
    skeleton=lambda theirs: {
        "evaluate.<loss>.type": "loss",
        "data.path": f"{TO_FILL_IN}/data",
        "train.lr.type": "cosine",
    },
    defaults=lambda theirs: {"lr": 0.5},
)


def test_a_configuration_has_its_parts_in_order_and_its_entries_in_lists():
    found = translate(SMALL, {"every": 3, "lr": 0.1, "nets.a.width": 8})
    assert found.config == {
        "task": {"encoders": {"a": {"width": 8}}},
        "data": {"path": "FILL_IN/data"},
        "train": {"lr": {"type": "cosine", "peak": 0.1}},
        "evaluate": [{"type": "loss", "every": {"steps": 3}}],
    }
    assert list(found.config) == ["task", "data", "train", "evaluate"]
    assert found.to_fill_in == ["data.path"]


def test_every_setting_has_one_line_with_its_outcome():
    theirs = {"films": 2, "size": 9, "debug": 1, "mode": "usual", "zoo": 1, "lr": "${eval:1}"}
    lines = {line.theirs: (line.outcome, line.text) for line in translate(SMALL, theirs).lines}
    assert lines == {
        "films": ("dropped", "the translated run has no evaluate.<rollout>, to which this belongs"),
        "size": ("dropped", "9 is too much"),
        "debug": ("dropped", "there is none"),
        "mode": ("dropped", "as here"),
        "zoo": ("unknown", "no setting of Small that is known here"),
        "lr": ("dropped", "a formula of Hydra; set train.lr.peak yourself"),
    }
    other, *_ = translate(SMALL, {"mode": "other"}).lines
    assert other.text == "one mode alone"


def test_a_default_of_theirs_is_translated_and_said_to_be_one():
    found = translate(SMALL, {"every": 3})
    assert found.config["train"]["lr"]["peak"] == 0.5
    assert [line.theirs for line in found.lines] == ["every", "lr (0.5 by default)"]
