"""Data sets on the Hugging Face Hub, downloaded into the cache of its client, always at one commit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.files.hub_files import HubError, HubRepository

_ADVICE = {
    "no revision": "; check data.episodes.revision",
    "no repository": "; check data.episodes.repo (user/name)",
    "uncached": "; try again, or give a directory as path",
}
_COMMIT = re.compile("[0-9a-f]{40}")


def download(repo: str, revision: str | None, patterns: Iterable[str]) -> tuple[Path, str]:
    """Download the files of a data set that are not in the cache yet.

    Args:
        revision: branch, tag or commit; None for the newest commit.
        patterns: of the names of the files that are needed, with `*`.

    Returns:
        Their directory, and the commit that they are of. Without network they are those that are in the cache.

    Raises:
        DataError: there is no such data set or revision, or it is gated.
        UnreadableError: the Hub cannot be reached and the cache does not have the data set.
    """
    repository = HubRepository(repo, revision, kind="dataset")
    where = f"https://huggingface.co/datasets/{repo}" + (f" at {revision}" if revision else "")
    try:
        path = repository.snapshot(patterns)
    except HubError as error:
        problem = f"{error.problem}{_ADVICE.get(error.reason, '')}"
        if error.reason in ("gated", "no revision", "no repository"):
            raise DataError(where, [problem]) from None
        raise UnreadableError(f"{where} {problem}") from None
    except OSError as error:
        raise UnreadableError(f"{where} cannot be downloaded: {error}") from None
    if not _COMMIT.fullmatch(path.name):
        raise DataError(where, [f"was downloaded to {path}, which is no snapshot of a commit"])
    return path, path.name
