"""Files and machines that a configuration of somebody else names."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import Field

from dp_prior.config import Config, ConfigError, Outside, records_in
from dp_prior.config.outside import check_named, outside_names
from dp_prior.run.config import TrainConfig
from tests.messages import told_each


class Inner(Config):
    url: Annotated[str | None, Outside()] = None
    key: str = "state"


class Outer(Config):
    file: Path = Path("ours")
    inner: Inner = Inner()
    parts: dict[str, Inner] = {}
    listed: tuple[Inner, ...] = ()
    options: Annotated[dict[str, Any], Outside()] = {}
    name: str = Field(default="x", min_length=1)


HOSTILE = Outer(
    file=Path("/private"),
    inner=Inner(url="s3://theirs", key="k"),
    parts={"a": Inner(key="k"), "b": Inner(url="ssh://theirs")},
    listed=(Inner(), Inner(url="u")),
    options={"n": 1, "inner": [{"robot": "~/private.json"}]},
    name="y",
)
NAMED = {
    "data.file": Path("/private"),
    "data.inner.url": "s3://theirs",
    "data.parts.b.url": "ssh://theirs",
    "data.listed.1.url": "u",
    "data.options": {"n": 1, "inner": [{"robot": "~/private.json"}]},
}


def test_every_path_and_marked_field_is_found_at_any_depth_and_nothing_else():
    assert dict(outside_names(HOSTILE, "data")) == NAMED
    assert dict(outside_names(Outer(), "data")) == {}, "a default is ours, no file chose it"
    assert dict(outside_names(Outer(options={"robots": ["Panda"], "n": 1.5}), "data")) == {}


@pytest.mark.parametrize("named", NAMED)
def test_a_setting_counts_when_the_user_names_it_too(named):
    others = [f"{path}=1" for path in NAMED if path != named]
    with pytest.raises(ConfigError) as error:
        check_named("hf://their/run", {"data": HOSTILE}, others)
    assert error.value.source == "hf://their/run" and told_each(error.value.problems, named)
    check_named("hf://their/run", {"data": HOSTILE}, [*others, f"{named} = here"])
    check_named("hf://their/run", {"data": HOSTILE}, [*others, f"{named.rpartition('.')[0]}={{}}"])
    with pytest.raises(ConfigError):
        check_named("hf://their/run", {"data": HOSTILE}, [*others, f"{named}s=here", f"{named[:-1]}=here"])


INSIDE = """
action_names architecture blind body by camera cameras clock clocks column cond_dropout data data_set depth embeddings
encoders episode episode_ends episodes file files film_camera filter flags folder form frame groups id image images
key label labels language leave_out mask mirror model models name names normalizer obs obs_key only parts points
previous_action relative_to revision sets sha256 shared_encoders shuffle start steps success_of suite task
teacher_sha256 text texts values weights weights_prefix where worlds
"""
"""Keys and columns inside of a file, names of parts, choices; maps of records by name; names in a folder, which are
refused where they leave the folder."""


def test_each_text_of_a_checkpoint_is_marked_or_known_to_name_nothing_outside():
    """A new field of a record is one or the other; fields of type Path are found by their type."""
    unmarked = {}
    for record in _records([TrainConfig.model_fields[part].rebuild_annotation() for part in PARTS]):
        for name, field in record.model_fields.items():
            is_marked = any(isinstance(mark, Outside) for mark in field.metadata)
            if str in _types(field.annotation) and not is_marked:
                unmarked.setdefault(name, record.__name__)
    assert len(unmarked) > 20, "no record was looked into"
    assert {name: record for name, record in unmarked.items() if name not in INSIDE.split()} == {}
    assert {*INSIDE.split()} - {*unmarked} == set()


PARTS = ("task", "data", "evaluate", "test")


def _types(annotation):
    """An annotation and all that it is made of."""
    return {annotation}.union(*map(_types, get_args(annotation))) if get_origin(annotation) is not Literal else set()


def _records(annotations):
    """All records that annotations admit, also inside others."""
    known, left = set(), list(annotations)
    while left:
        annotation = left.pop()
        for record in records_in(annotation):
            if record not in known:
                known.add(record)
                left += [field.rebuild_annotation() for field in record.model_fields.values()]
        left += get_args(annotation)
    return known
