"""Recognition of the groups of one HDF5 file that hold an episode each, by the names and shapes of its arrays."""

from __future__ import annotations

import glob
from collections import defaultdict

from dp_prior.data.formats.grouped import Layout, steps_key

_DEEPEST = 2
"""Most groups above the groups of episodes, such as `trials` above `trials/trial_0`."""


def groups_of_episodes(layout: Layout) -> dict[str, Layout]:
    """Find the numbered groups that hold an episode each, as NAME_0, NAME_1, ... or below a parent.

    Returns:
        the arrays of each group by their paths in the group; empty for other layouts, and if several parents have such
        groups, which may be parts of one episode.
    """
    families: dict[str, dict[str, Layout]] = defaultdict(lambda: defaultdict(dict))
    for key, header in layout.items():
        names = key.split("/")
        numbered = [depth for depth, name in enumerate(names[:-1][: _DEEPEST + 1]) if name[-1:].isdecimal()]
        if numbered:
            depth = numbered[0] + 1
            families[_pattern("/".join(names[:depth]))]["/".join(names[:depth])]["/".join(names[depth:])] = header
    several = [groups for groups in families.values() if len(groups) > 1]
    if len(several) != 1:
        return {}
    groups = several[0]
    shared = set.intersection(*map(set, groups.values()))
    beside = {key: header for key, header in layout.items() if not key.startswith(tuple(f"{name}/" for name in groups))}
    has_actions = steps_key({key: header for key, header in [*groups.values()][0].items() if key in shared}) is not None
    is_apart = not beside or (has_actions and steps_key(beside) is None)
    return dict(groups) if shared and is_apart else {}


def pattern_of(groups: dict[str, Layout]) -> str:
    """The pattern of the paths of groups that `groups_of_episodes` found, such as trials/trial_*."""
    return _pattern(next(iter(groups)))


def hold_episodes_surely(groups: dict[str, Layout], is_only_file: bool) -> bool:
    """Whether groups are episodes rather than arms of one episode, which have the same steps.

    Args:
        is_only_file: whether no other file lies beside; several files are rather an episode each.
    """
    keys = {name: steps_key(arrays) for name, arrays in groups.items()}
    rows = {groups[name][key][0][:1] for name, key in keys.items() if key is not None}
    return len(rows) > 1 or bool(rows and is_only_file and len(groups) > 2)


def _pattern(group: str) -> str:
    parent, _, name = group.rpartition("/")
    stem = glob.escape(name.rstrip("0123456789")) or "[0-9]"
    return f"{parent}/{stem}*".lstrip("/")
