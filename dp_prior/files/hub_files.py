"""Files on the Hugging Face Hub: references `user/name[@revision]`, downloads into the client's cache, and its errors.

HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE are obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from dp_prior.files.left_behind import left_behind

REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

T = TypeVar("T")

Reason = Literal[
    "no repository", "no revision", "no file", "gated", "too large", "uncached", "unreachable", "answer", "settings"
]
"""Uncached: the Hub gives no files, nor does the cache. Unreachable: a connection broke. Answer: another
status of HTTP. Settings: HF_ENDPOINT or the token is unusable."""

ANSWER_S = 60.0
"""Timeout of an answer about a repository, like the client's own for a file; without a timeout the client waits for
ever."""


class HubError(OSError):
    """The Hub refuses a download or an upload, or is out of reach.

    Attributes:
        reason: the kind of failure.
        problem: one line without the name of the repository. The client's own texts may quote a secret.
        status: status of the Hub's answer; None without an answer.
        retry_after: seconds that the Hub asks to wait before the next attempt.
    """

    def __init__(self, where: str, problem: str, reason: Reason, status: int | None = None, pause: float | None = None):
        super().__init__(f"{where} {problem}")
        self.reason, self.problem, self.status, self.retry_after = reason, problem, status, pause


@dataclass(frozen=True)
class HubRepository:
    """A repository of the Hub.

    Attributes:
        name: `user/name`.
        revision: branch, tag or commit; None for the newest commit.
        kind: whether the repository holds a model or a data set.
    """

    name: str
    revision: str | None = None
    kind: Literal["model", "dataset"] = "model"

    @classmethod
    def parse(cls, text: str) -> HubRepository | None:
        """The repository that `user/name[@revision]` names; None if the text has another form."""
        name, _, revision = text.partition("@")
        return cls(name, revision or None) if REPO.fullmatch(name) else None

    def __str__(self) -> str:
        return self.name + (f"@{self.revision}" if self.revision else "")

    def remedy(self, error: HubError) -> str:
        """The remedy of an error about a model, as further sentences of its message."""
        if error.reason not in ("uncached", "unreachable"):  # the other errors explain themselves
            return ". A local folder will do, too"
        return self.download_first

    @property
    def download_first(self) -> str:
        """The command that downloads a model, as a further sentence of an error."""
        revision = "" if self.revision is None else f" --revision {self.revision}"
        return f". Download it first (hf download {self.name}{revision}), or give a local folder"

    def snapshot(self, patterns: Iterable[str]) -> Path:
        """Download the files of one commit whose names match, and return their folder; cached files are not downloaded.

        Without network, returns the files in the cache.

        Args:
            patterns: patterns of names, with `*`.

        Raises:
            HubError: the Hub refuses the files.
            OSError: the files cannot be stored.
        """
        from huggingface_hub import HfApi, errors, snapshot_download

        repository = {"repo_type": self.kind, "revision": self.revision}

        def download() -> str:
            try:
                if not is_offline():  # with a timeout, which the download's own request lacks
                    with suppress(errors.HfHubHTTPError):  # harmless if the cache has all files
                        HfApi(library_name="dp_prior").repo_info(self.name, timeout=ANSWER_S, **repository)
                return snapshot_download(self.name, allow_patterns=chosen, **repository)
            except http_library().TransportError:  # the client takes only some of these for a missing network
                return snapshot_download(self.name, allow_patterns=chosen, local_files_only=True, **repository)

        chosen = list(patterns)
        with self.translated():
            return Path(self.asked(download))

    def cached(self, patterns: Iterable[str]) -> Path:
        """The folder of the files of one commit in the client's cache; the Hub is not asked.

        Raises:
            HubError: the cache has no commit of the repository.
        """
        from huggingface_hub import snapshot_download

        request = {"repo_type": self.kind, "revision": self.revision, "allow_patterns": list(patterns)}
        with self.translated():
            return Path(snapshot_download(self.name, local_files_only=True, **request))

    def file(self, path: str, largest: int, **options: Any) -> Path:
        """Find a file in the client's cache; downloads a missing file.

        Args:
            largest: most bytes of the file.
            options: keywords of `hf_hub_download`, such as `token` and `cache_dir`.

        Raises:
            HubError: the Hub refuses the file, or the file is larger.
            OSError: the file cannot be stored.
        """
        from huggingface_hub import hf_hub_download

        request = {"repo_type": self.kind, "revision": self.revision, **options}

        def download() -> str:
            plan = hf_hub_download(self.name, path, dry_run=True, **request)
            if not plan.is_cached and plan.file_size is not None and plan.file_size > largest:
                raise HubError(str(self), too_large(path, plan.file_size, largest), "too large")
            return hf_hub_download(self.name, path, **request)

        with self.translated(path):
            return Path(self.asked(download))

    def asked(self, work: Callable[[], T]) -> T:
        """Run work that asks the Hub about this repository; an interrupt leaves the work behind."""
        from huggingface_hub import constants

        folder = "datasets/" if self.kind == "dataset" else ""
        return left_behind(work, place=f"{constants.ENDPOINT.rstrip('/')}/{folder}{self}")

    @contextmanager
    def translated(self, path: str | None = None) -> Iterator[None]:
        """A context in which errors of the client are raised as HubError.

        Args:
            path: the requested file; None for a whole repository.
        """
        from huggingface_hub import errors

        fault = None if is_offline() else _settings_fault()
        if fault is not None:
            raise HubError(str(self), f"cannot be requested: {fault}", "settings")
        noun, cached = {"model": "repository", "dataset": "data set"}[self.kind], f"has no {path}" if path else "is not"
        from_token = " from this token; check the name, or set HF_TOKEN"
        kinds: dict[type[Exception], tuple[Reason, str]] = {  # the first match counts
            errors.LocalEntryNotFoundError: ("uncached", f"{cached} in the local cache, and the Hub"),
            errors.RemoteEntryNotFoundError: ("no file", f"has no {path}"),
            errors.GatedRepoError: ("gated", "is gated; accept its conditions on its page, and set HF_TOKEN"),
            errors.RevisionNotFoundError: ("no revision", "has no such revision"),
            errors.RepositoryNotFoundError: ("no repository", f"is no {noun} on the Hub, or hidden{from_token}"),
            errors.HFValidationError: ("no repository", f"is no {noun} on the Hub; its name must be user/name"),
            errors.HfHubHTTPError: ("answer", "cannot be read: the Hub answered"),
            http_library().HTTPError: ("unreachable", "cannot be reached on the Hub"),
        }
        try:
            yield
        except (RuntimeError, *kinds) as caught:
            error: BaseException = caught
            while isinstance(error, RuntimeError) and error.__cause__ is not None:  # the client's threads wrap theirs
                error = error.__cause__
            matches = [meaning for kind, meaning in kinds.items() if isinstance(error, kind)]
            if not matches:
                raise
            reason, problem = matches[0]
            cause = error.__cause__ if reason == "uncached" else error  # the reason for looking in the cache
            answer = cause.response if isinstance(cause, errors.HfHubHTTPError) else None
            status = None if answer is None else answer.status_code
            retry_after = "" if answer is None else answer.headers.get("Retry-After", "")  # in seconds, never a date
            if reason == "uncached":
                problem += f" answered {status}" if status else " cannot be reached"
            elif reason in ("answer", "unreachable"):
                problem += f" {status}" if status else f" ({type(error).__name__})"
            pause = float(retry_after) if retry_after.isdigit() else None
            raise HubError(str(self), problem, reason, status, pause) from None


def http_library() -> ModuleType:
    """The HTTP library of the installed huggingface_hub, for its exceptions: httpx2 from version 2 on, before httpx."""
    import huggingface_hub

    if int(huggingface_hub.__version__.partition(".")[0]) < 2:
        import httpx as library
    else:
        import httpx2 as library
    return library


def has_token() -> bool:
    """Whether HF_TOKEN or `hf auth login` has given the client a token."""
    from huggingface_hub import get_token

    return bool(get_token())


def _settings_fault() -> str | None:
    """Why the client's endpoint or token is unusable; None for usable settings."""
    from huggingface_hub import constants, get_token

    if not _is_url(constants.ENDPOINT):
        return f"HF_ENDPOINT is {constants.ENDPOINT!r}; expected a URL such as https://huggingface.co"
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        return "the token of HF_TOKEN or `hf auth login` has characters that no token has; copy it again"
    return None


def _is_url(text: str) -> bool:
    """Whether a text is an HTTP address with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets or a port
        return False


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the client to ask the Hub."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def too_large(path: str, size: int, largest: int) -> str:
    """The problem of a file with too many bytes."""
    return f"has {size} bytes in {path}; expected at most {largest}"


def locate(reference: str, setting: str) -> Path | HubRepository:
    """Resolve a reference: an existing folder wins; otherwise `user/name[@revision]` is a repository of the Hub.

    Args:
        setting: names the reference in the error.

    Raises:
        FileNotFoundError: the reference is neither a folder nor the name of a repository.
    """
    if reference and Path(reference).is_dir():
        return Path(reference)
    repository = HubRepository.parse(reference)
    if repository is None:
        form = "user/name[@revision], such as openai/clip-vit-base-patch32"
        raise FileNotFoundError(f"{setting} {reference!r} is no folder, and no Hub id {form}")
    return repository
