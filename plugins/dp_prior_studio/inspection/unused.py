"""A line for every key of a data set that is not read, so that nothing is passed over in silence."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from dp_prior.data.formats.episode_store import TASK, EpisodeStore
from dp_prior_studio.inspection.roles import (
    CALIBRATION,
    COMMAND,
    RECORDING,
    TEXT,
    action_parts,
    clock_key,
    is_previous,
    unobservable,
)

_ACTION = re.compile(r"(^|[./_])(action|ctrl|control|command|cmd|target)", re.I)


def unused_keys(store: EpisodeStore, used: Collection[str], n_texts: int, unread: Mapping[str, str]) -> dict[str, str]:
    """Type, shape and meaning of every key but those used, and of arrays that are no keys, by name.

    Args:
        used: keys that are read as observation, action or camera, or listed elsewhere.
        n_texts: different instructions.
        unread: see `EpisodeStore.unread`, which may look into every file.
    """
    shapes = store.keys()
    counted = [key for key in store.counted if key in shapes and key not in unread]
    lines = {key: _line(store, key, shapes[key], n_texts) for key in shapes if key not in {*used, *counted, *unread}}
    derived = {", ".join(counted): "follow from the episodes"} if counted else {}
    return {**lines, **derived, **{key: line for key, line in unread.items() if key not in used}}


def _line(store: EpisodeStore, key: str, shape: tuple[int, ...], n_texts: int) -> str:
    label = f"{store.dtype(key)} {tuple(shape)}"
    if key in (TASK, store.text_key):
        return f"{label}, the number of the instruction; {n_texts} of them, read by data.language"
    if 0 in shape:
        return f"{label}, empty"
    if not store.is_number(key):
        if label.startswith("object"):
            return f"{label}, Python objects, which are never decoded; save plain arrays of numbers"
        if label.startswith("complex"):
            return f"{label}, complex numbers; save real and imaginary parts as two keys"
        if label.startswith("language"):
            if any(text_key.startswith(f"{key}.") for text_key in store.counted):
                return f"{label}, annotations, whose texts have keys of their own"
            return f'{label}, annotations; "type": "annotated_lerobot" in data.episodes has keys of their texts'
        return f"{label}, no numbers; texts are read by data.language"
    if len(shape) >= 2 and store.dtype(key) == "uint8":
        return f"{label}, no picture by its name or shape; to read it, name it in data.images"
    if is_of_episodes(store, key):
        return f"{label}, one for each episode, which is no observation of a step"
    if len(shape) == 2 and shape[1] in (3, 6) and unobservable(key) is None:
        return f"{label}, no observation by its name; to read it, name it in data.points or data.obs"
    if key == clock_key(store.keys()):
        return f"{label}, the time of each step, in which gaps are looked for"
    meaning = unobservable(key) or "no observation by its name"
    if meaning == COMMAND:
        return f"{label}, {meaning}; to learn it, name it in data.action"
    remedy = {TEXT: "; if it numbers instructions, name it in data.language", RECORDING: "", CALIBRATION: ""}
    return f"{label}, {meaning}{remedy.get(meaning, '; to read it, name it in data.obs')}"


def is_of_episodes(store: EpisodeStore, key: str) -> bool:
    """Whether a key has one row for each episode rather than for each step, such as the state of a reset."""
    n_episodes = len(store.episode_ends)
    return n_episodes > 0 and store.rows(key) == n_episodes < int(store.episode_ends[-1])


def action_hint(shapes: dict[str, tuple[int, ...]], observations: Collection[str]) -> str:
    """The option that names the action of a data set without a key of that name."""
    candidates = [key for key in shapes if unobservable(key) in (COMMAND, None) and not is_previous(key)]
    candidates = [key for key in candidates if _ACTION.search(key) or unobservable(key) == COMMAND]
    candidates = [key for key in candidates if not key.startswith("obs")] or candidates
    if candidates := action_parts({key: shapes[key] for key in candidates}) or candidates:
        listed = ", ".join(f"{key} {shape}" for key, shape in shapes.items() if key in candidates)
        which = "candidates are" if len(candidates) > 1 else "a candidate is"
        joined = "; several are joined" if len(candidates) > 1 else ""
        return f"{which} {listed}{joined}: --set 'data.action.key={_listed(candidates)}'"
    hint = "name it by --set data.action.key=KEY; if none was recorded, the next value of what is observed is one"
    line = f'{{"key": {_listed(observations)}, "ahead": 1}}'
    return f"{hint}: --set 'data.action={line}'" if observations else ""


def _listed(keys: Collection[str]) -> str:
    quoted = [f'"{key}"' for key in keys]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"
