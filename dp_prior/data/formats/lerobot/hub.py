"""Data sets on the Hugging Face Hub, downloaded into the cache of its client, always at one commit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from dp_prior.data.errors import DataError, UnreadableError

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
    import httpx2
    from huggingface_hub import errors, snapshot_download

    where = f"https://huggingface.co/datasets/{repo}" + (f" at {revision}" if revision else "")

    def get(**how: bool) -> Path:
        names = {"revision": revision, "allow_patterns": list(patterns)}
        return Path(snapshot_download(repo, repo_type="dataset", **names, **how))

    try:
        try:
            path = get()
        except httpx2.TransportError:  # of which the client takes only some for a missing network
            path = get(local_files_only=True)
    except errors.GatedRepoError:  # a RepositoryNotFoundError too, so it comes first
        problem = "is gated; accept its conditions on its page and set HF_TOKEN"
        raise DataError(where, [problem]) from None
    except errors.RevisionNotFoundError:
        raise DataError(where, ["has no such revision; check data.episodes.revision"]) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = "is no data set on the Hub, or a private one; check data.episodes.repo (user/name) and HF_TOKEN"
        raise DataError(where, [problem]) from None
    except errors.LocalEntryNotFoundError:
        problem = "is not in the local cache, and the Hub cannot be reached; try again, or give a directory as path"
        raise UnreadableError(f"{where} {problem}") from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise UnreadableError(f"{where} cannot be downloaded: {error}") from None
    if not _COMMIT.fullmatch(path.name):
        raise DataError(where, [f"was downloaded to {path}, which is no snapshot of a commit"])
    return path, path.name
