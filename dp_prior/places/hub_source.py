"""A repository of the Hugging Face Hub as a source of checkpoints, at one commit, through its client and its cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.format import FileEntry
from dp_prior.places.download import LARGEST_SMALL, NoPlaceError, RemoteError


class HubSource:
    """See `dp_prior.places.cache.Source`.

    The first file that is found fixes the commit, so that all files are of one moment. When the Hub cannot be reached,
    or HF_HUB_OFFLINE is set, the client's cache answers.
    """

    def __init__(self, repo: str, revision: str | None, **options: Any):
        """
        Args:
            options: keywords of `hf_hub_download`, such as `token` and `cache_dir`.
        """
        try:
            import huggingface_hub  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"there is no path {repo} here, and the Hub's client is not installed ({error}): "
                f"pip install huggingface_hub"
            ) from error
        self._repo = repo
        self._revision = revision
        self._options = options

    def small(self, path: str) -> bytes:
        """The content of a pointer or manifest."""
        found = self._download(path, LARGEST_SMALL)
        self._revision = found.parts[found.parts.index("snapshots") + 1]
        return found.read_bytes()

    def obtain(self, path: str, entry: FileEntry, target: Path) -> None:
        """A file that is to have this size and hash."""
        import hashlib

        for attempt in (1, 2):
            found = self._download(path, entry.size, **({"force_download": True} if attempt == 2 else {})).resolve()
            with open(found, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256:
                    break
        else:
            raise RemoteError(f"hf://{self._repo}: {path} does not have the SHA-256 of its manifest")
        target.unlink(missing_ok=True)
        try:
            os.link(found, target)
        except OSError:
            shutil.copyfile(found, target)

    def _download(self, path: str, most: int, **options: Any) -> Path:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.constants import is_offline_mode

        options = {**self._options, **options}
        with self._told(path):
            is_cached = isinstance(
                try_to_load_from_cache(self._repo, path, options.get("cache_dir"), self._revision), str
            )
            if not is_cached and not is_offline_mode() and not options.get("local_files_only"):
                url = hf_hub_url(self._repo, path, revision=self._revision)
                size = get_hf_file_metadata(url, token=options.get("token"), timeout=10).size
                if size is not None and size > most:
                    raise RemoteError(f"hf://{self._repo}: {path} has {size} bytes, expected at most {most}")
            return Path(hf_hub_download(self._repo, path, revision=self._revision, **options))

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """Errors of the client in our words."""
        from huggingface_hub import get_token
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RemoteEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        name = f"hf://{self._repo}" + (f"@{self._revision}" if self._revision else "")
        try:
            yield
        except LocalEntryNotFoundError:
            raise RemoteError(
                f"{name}: the Hub cannot be reached, and {path} is not in the cache (nor is {self._repo} a path here)"
            ) from None
        except RemoteEntryNotFoundError:
            raise FileNotFoundError(f"{name} has no {path}") from None
        except GatedRepoError:
            raise RemoteError(f"{name} asks for its conditions to be accepted on its page first") from None
        except RevisionNotFoundError:
            raise NoPlaceError(f"{name}: the repository has no such revision") from None
        except (RepositoryNotFoundError, HFValidationError):
            missing = NoPlaceError(
                f"the Hub has no repository {self._repo}, or hides it from this token, and there is no such path here; "
                f"look at the name, or set HF_TOKEN"
            )
            missing.may_be_hidden = not (self._options.get("token") or get_token())
            raise missing from None
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else "nothing"
            raise RemoteError(f"{name}: the Hub answered {status} to {path}") from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2"):
                raise RemoteError(f"{name}: the Hub cannot be reached ({type(error).__name__})") from None
            raise
