"""The choice of recorded episodes: by the data set's own numbers, by names of its parts, or by a column."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from dp_prior.config import Config
from dp_prior.data.errors import DataError, first_few, nearest_name
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore

_RANGE = re.compile(r"(\d+)-(\d+)")


def _good_entry(value: int | str) -> int | str:
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and value < 0:
        raise ValueError(f"episode {value} has a number below 0; expected a number, a range such as '10-19', or a name")
    if match and int(match[1]) > int(match[2]):
        raise ValueError(f"range {value!r} ends before it begins; write '{match[2]}-{match[1]}'")
    return value


Episodes = tuple[Annotated[int | str, AfterValidator(_good_entry)], ...]
"""Episodes by the data set's own numbers: a number, a range with both ends such as "10-19", or the name of a part."""

Value = bool | int | float | str


class ChoiceConfig(Config):
    """Which recorded episodes are used. An entry of a list is a number in the data set's own numbering, a range with
    both ends such as "10-19", or the name of a part that the data set has: a mask of robomimic, a split of LeRobot."""

    only: Episodes | None = Field(default=None, min_length=1)
    """The episodes that are used; null: all."""

    leave_out: Episodes = ()
    """Episodes that are not used, such as those with a fault."""

    where: dict[str, Value | Annotated[tuple[Value, ...], Field(min_length=1)]] = {}
    """Use an episode only if each of these keys has the given value, such as `{"success": true}`, or a value of the
    given list. The value at the last step of the episode counts; an array may have a value per episode instead."""

    def of(self, store: EpisodeStore) -> tuple[Chosen, list[str]]:
        """Choose the episodes of a data set, and list the faults of its episode ends; with faults choose all episodes.

        Raises:
            DataError: an entry names an unknown episode or part, or no episode remains.
        """
        ends, problems = store.checked_ends()
        every = np.arange(len(ends))
        if problems and not (len(ends) and (np.diff(ends, prepend=0) >= 0).all()):
            return Chosen(ends, every, every), problems
        numbers = every if self.only is None else episodes_of(self.only, store, "choice.only")
        numbers = np.setdiff1d(numbers, episodes_of(self.leave_out, store, "choice.leave_out"))
        chosen = Chosen(ends, numbers, store.numbers())
        empty = numbers[chosen.lengths == 0]  # an episode without steps may be left out
        if len(empty):
            return chosen, [*problems, leaving_out(chosen.names[empty].tolist())]
        for key, condition in self.where.items():
            if len(chosen.numbers):
                allowed = condition if isinstance(condition, tuple) else (condition,)
                names = set(map(named, allowed))
                is_chosen = [named(value) in names for value in chosen.last(store, key)]
                chosen = replace(chosen, numbers=chosen.numbers[is_chosen])
        if not len(chosen.numbers):
            raise DataError(store.where, [f"choice leaves none of {len(ends)} episodes"])
        return chosen, []


ALL_EPISODES = ChoiceConfig()
"""The choice of every episode."""


def episodes_of(listed: Iterable[int | str], store: EpisodeStore, where: str) -> np.ndarray:
    """Find the (k,) sorted positions, in the order of the rows, of listed episodes.

    Args:
        where: the setting, for messages.

    Raises:
        DataError: the data set has no such episode or part.
    """
    numbers, parts, problems = store.numbers(), store.parts(), []
    places = [np.zeros(0, np.int64)]
    for entry in listed:
        span = _RANGE.fullmatch(str(entry))
        first, last = (span[1], span[2]) if span else (entry, entry)
        if entry in parts:
            places.append(np.array(parts[entry], np.int64))
        elif isinstance(entry, int) or span:
            places.append(np.flatnonzero((numbers >= int(first)) & (numbers <= int(last))))
            if not len(places[-1]):
                problems.append(f"{where} names {entry}, but episodes are numbered {numbers.min()} to {numbers.max()}")
        else:
            hint = nearest_name(entry, parts)
            unknown = f"{where} names the part {entry!r}, which the data set does not have"
            problems.append(f"{unknown}; expected a number, a range such as '10-19', or a part. {hint}")
    if problems:
        raise DataError(store.where, problems)
    return np.unique(np.concatenate(places))


def beyond(choice: ChoiceConfig, numbers: np.ndarray) -> Iterator[str]:
    """Report the ranges of a choice that reach beyond the (E,) numbers of the episodes, so that fewer are chosen."""
    for span in filter(None, (_RANGE.fullmatch(str(entry)) for entry in (*(choice.only or ()), *choice.leave_out))):
        if len(numbers) and (int(span[1]) < numbers.min() or int(span[2]) > numbers.max()):
            yield f"{span[0]} reaches beyond the episodes, which are numbered {numbers.min()} to {numbers.max()}"


def named(value: Any) -> str:
    """Write a value as a text that does not depend on its type: `true` and `false`, whole numbers in full and without a
    point, other numbers by the digits that their type keeps, so that 0.1 of 32 bits is 0.1."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (str, int, np.integer)):
        return str(value)
    number = float(str(value))  # the shortest text of a narrow float, whose exact value has other digits
    return str(int(number)) if number.is_integer() else f"{number:.15g}"


def ranges(numbers: Iterable[int]) -> list[int | str]:
    """Write numbers as the shortest list of `Episodes`: runs of three and more as a range."""
    ordered = np.unique(np.fromiter(numbers, np.int64))
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1) if len(ordered) else []
    listed: list[int | str] = []
    for run in runs:
        listed += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run.tolist()
    return listed


def leaving_out(numbers: Iterable[int]) -> str:
    """Write the setting that leaves out episodes, given the data set's own numbers."""
    return f'leave these episodes out: "choice": {json.dumps({"leave_out": ranges(numbers)})} in data'


def overlaps(parts: Mapping[str, Iterable[int]], episode_numbers: np.ndarray) -> Iterator[str]:
    """Report every two parts that share episodes.

    Args:
        parts: positions of episodes by the name of the part.
        episode_numbers: (E,) the data set's own number of each episode.
    """
    for name, other in itertools.combinations(parts, 2):
        common = set(parts[name]) & set(parts[other])
        if common:
            shared = ranges(episode_numbers[sorted(common)].tolist())
            yield f"{name} and {other} share the episodes {first_few(shared, 20)}"
