"""The Hugging Face Hub: checkpoints sent to a repository, and read from one.

Each checkpoint is an immutable folder `checkpoints/step_00012000`. The root holds the best checkpoint as the Hub and
other libraries expect it: `model.safetensors`, `config.json`, the model card, and the pointer `best.json`. One commit
replaces all root files, so every revision of the repository is a complete model. The token comes from HF_TOKEN or
`hf auth login` and is never written anywhere; HF_ENDPOINT and HF_HUB_OFFLINE are obeyed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dp_prior.checkpoints.format import MANIFEST, MODEL_FILES
from dp_prior.durable import link_or_copy
from dp_prior.places.card import model_card
from dp_prior.places.destination import Report, delivered, folders
from dp_prior.places.parcel import Parcel
from dp_prior.places.pointer import LARGEST_POINTER, Pointer, movable
from dp_prior.places.source import NoPlaceError, RemoteError
from dp_prior.places.upload import UploadConfig

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
CARD, MEDIA = "README.md", "media"


class HuggingFaceSaverConfig(UploadConfig):
    """Sends checkpoints to a repository of the Hugging Face Hub, with a model card. Needs a token with write access."""

    type: Literal["huggingface"] = "huggingface"

    repo: str = Field(pattern=rf"^{REPO.pattern}$")
    """The repository, `user/name`; created if it does not exist."""

    private: bool = True
    """Whether a newly created repository is private."""

    license: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """License of the weights in the model card, by its name on the Hub, such as `mit`; null for none."""

    @property
    def place(self) -> str:
        """See `UploadConfig`."""
        return f"huggingface {self.repo}"

    def destination(self) -> HubDestination:
        """See `UploadConfig`."""
        return HubDestination(self)


class HubDestination:
    """A repository to send to; see `Destination`."""

    def __init__(self, record: HuggingFaceSaverConfig):
        self.record = record
        self._api = _connect()

    def check(self) -> str:
        """Whether the token may write; creates the repository."""
        with _translated():
            user = self._api.whoami()["name"]
            self._head()
            self._api.auth_check(self.record.repo, write=True)
        return f"user {user} may write to {self.record.repo}"

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> Report:
        """Upload the folder, verify it, move the pointer, tag; see `Destination`."""
        with _translated():
            folder, is_there = self._folder(parcel, self._head())
            if not is_there:
                spend()
                self._commit_folder(parcel, folder)
            return self._move(parcel, folder, spend)

    def _head(self) -> str:
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            return self._api.repo_info(self.record.repo).sha
        except RepositoryNotFoundError:
            self._api.create_repo(self.record.repo, private=self.record.private, exist_ok=True)
            return self._api.repo_info(self.record.repo).sha

    def _folder(self, parcel: Parcel, revision: str) -> tuple[str, bool]:
        """The folder for this checkpoint, and whether it is complete; skips folders with other files."""
        for folder in folders(parcel.name):
            files = self._listing(folder, revision)
            if not files or not _differences(parcel, files):
                return folder, bool(files)
        raise AssertionError("there is always another name")

    def _commit_folder(self, parcel: Parcel, folder: str) -> None:
        from huggingface_hub import CommitOperationAdd

        files = [CommitOperationAdd(f"{folder}/{name}", parcel.directory / name) for name in parcel.files()]
        message = f"Add {folder.removeprefix('checkpoints/')}"
        done = self._api.create_commit(self.record.repo, files, commit_message=message)
        wrong = _differences(parcel, self._listing(folder, done.oid))
        if wrong:
            raise RemoteError(f"{self.record.repo} does not hold what was sent: {', '.join(wrong)}")

    def _move(self, parcel: Parcel, folder: str, spend: Callable[[], None]) -> Report:
        """Move the pointers in one commit on top of the revision that was read.

        If another process committed meanwhile the Hub answers 412, and the next attempt reads the new pointer.
        """
        head = self._head()
        there = self._best(head) if "best" in parcel.kinds else None
        kinds, remark = movable(parcel.kinds, there, parcel.pointer(folder))
        if kinds:
            operations = self._pointers(parcel, folder, kinds, head)
            message = f"{' and '.join(kinds).capitalize()}: step {parcel.manifest.step}"
            spend()
            done = self._api.create_commit(self.record.repo, operations, commit_message=message, parent_commit=head)
            self._api.create_tag(self.record.repo, tag=folder.rpartition("/")[2], revision=done.oid, exist_ok=True)
        return delivered(folder, kinds, remark)

    def _pointers(self, parcel: Parcel, folder: str, kinds: tuple[str, ...], head: str) -> list[Any]:
        """The pointer files and, for a new best, the files at the root; weights are copied within the repository."""
        from huggingface_hub import CommitOperationAdd, CommitOperationCopy

        pointer = parcel.pointer(folder).encode()
        operations: list[Any] = [CommitOperationAdd(f"{kind}.json", pointer) for kind in kinds]
        if "best" not in kinds:
            return operations
        for name in (name for name in MODEL_FILES if name in parcel.manifest.files):
            if name.endswith(".safetensors"):
                operations.append(CommitOperationCopy(f"{folder}/{name}", name, src_revision=head))
            else:
                operations.append(CommitOperationAdd(name, parcel.directory / name))
        media = {f"{MEDIA}/{name}": path for name, path in parcel.media().items()}
        card = model_card(parcel, self.record.repo, self.record.license, folder, list(media))
        rest = {MANIFEST: parcel.manifest.only(MODEL_FILES).encode(), **media, CARD: card.encode()}
        return operations + [CommitOperationAdd(name, content) for name, content in rest.items()]

    def _best(self, revision: str) -> Pointer | None:
        with tempfile.TemporaryDirectory() as cache:
            try:
                source = HubSource(self.record.repo, revision, cache_dir=cache)
                return Pointer.parse(source.read("best.json", LARGEST_POINTER))
            except FileNotFoundError:
                return None

    def _listing(self, folder: str, revision: str) -> dict[str, RepoFile]:
        """The files in a folder by name; none if there is no such folder."""
        from huggingface_hub import RepoFile
        from huggingface_hub.errors import RemoteEntryNotFoundError

        try:
            found = list(self._api.list_repo_tree(self.record.repo, folder, revision=revision, recursive=True))
        except RemoteEntryNotFoundError:
            return {}
        return {file.path.removeprefix(f"{folder}/"): file for file in found if isinstance(file, RepoFile)}


class HubSource:
    """A repository to read from, at one commit; see `Source`.

    The first file found fixes the commit, so that all files are of one revision. When the Hub cannot be reached, or
    HF_HUB_OFFLINE is set, files come from the client's cache.
    """

    def __init__(self, repo: str, revision: str | None, **options: Any):
        """
        Args:
            options: keywords of `hf_hub_download`, such as `token` and `cache_dir`.
        """
        self._repo = repo
        self._revision = revision
        self._options = options

    @property
    def revision(self) -> str | None:
        """The commit, once a file was found; before the first file the requested revision."""
        return self._revision

    def read(self, path: str, most: int) -> bytes:
        """See `Source`."""
        found = self._fetch(path, most)
        self._revision = found.parents[path.count("/")].name  # the client's cache holds snapshots/COMMIT/PATH
        if (size := found.stat().st_size) > most:
            raise self._too_large(path, size, most)
        return found.read_bytes()

    def download(self, path: str, size: int, target: Path, *, anew: bool) -> None:
        """See `Source`."""
        target.unlink(missing_ok=True)
        link_or_copy(self._fetch(path, size, anew=anew).resolve(), target)

    def _fetch(self, path: str, most: int, *, anew: bool = False) -> Path:
        from huggingface_hub import hf_hub_download

        options = {**self._options, "force_download": anew or self._options.get("force_download", False)}
        with self._told(path):
            found = hf_hub_download(self._repo, path, revision=self._revision, dry_run=True, **options)
            if not found.is_cached and found.file_size is not None and found.file_size > most:
                raise self._too_large(path, found.file_size, most)
            return Path(hf_hub_download(self._repo, path, revision=self._revision, **options))

    def _too_large(self, path: str, size: int, most: int) -> RemoteError:
        return RemoteError(f"hf://{self._repo}: {path} has {size} bytes, expected at most {most}")

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """Raise errors of the client as RemoteError or FileNotFoundError."""
        import httpx2
        from huggingface_hub import errors, get_token

        name = f"hf://{self._repo}" + (f"@{self._revision}" if self._revision else "")
        try:
            yield
        except errors.LocalEntryNotFoundError:
            raise RemoteError(
                f"{name}: the Hub cannot be reached, and {path} is not in the cache (nor is {self._repo} a path here)"
            ) from None
        except errors.RemoteEntryNotFoundError:
            raise FileNotFoundError(f"{name} has no {path}") from None
        except errors.GatedRepoError:
            raise RemoteError(f"{name} is gated; accept its conditions on its page first") from None
        except errors.RevisionNotFoundError:
            raise NoPlaceError(f"{name}: the repository has no such revision") from None
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            raise NoPlaceError(
                f"the Hub has no repository {self._repo}, or hides it from this token, and there is no such path here; "
                f"check the name, or set HF_TOKEN",
                may_be_hidden=not (self._options.get("token") or get_token()),
            ) from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else "nothing"
            raise RemoteError(f"{name}: the Hub answered {status} to {path}") from None
        except httpx2.HTTPError as error:
            raise RemoteError(f"{name}: the Hub cannot be reached ({type(error).__name__})") from None


def publish(
    parcel: Parcel,
    repo: str,
    message: str,
    *,
    private: bool,
    token: str | None,
    branch: str | None,
    license_name: str | None,
) -> str:
    """Put the files of a parcel and a card at the root of a repository, in one commit; returns the commit's page.

    Raises:
        RemoteError: the Hub refuses, or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd

    with _translated():
        api = _connect(token)
        api.create_repo(repo, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repo, branch=branch, exist_ok=True)
        files = [CommitOperationAdd(name, parcel.directory / name) for name in parcel.files()]
        files.append(CommitOperationAdd(CARD, model_card(parcel, repo, license_name, "", []).encode()))
        return api.create_commit(repo, files, commit_message=message, revision=branch).commit_url


def _connect(token: str | None = None) -> HfApi:
    """A client with a token.

    Raises:
        RemoteError: offline mode, or no token.
    """
    from huggingface_hub import HfApi, constants, get_token

    if constants.is_offline_mode():
        raise RemoteError("HF_HUB_OFFLINE is set, so nothing is sent", "offline")
    if not token and not get_token():
        raise RemoteError("there is no Hugging Face token; set HF_TOKEN or run `hf auth login`", "refused")
    return HfApi(library_name="dp_prior", token=token)


def _differences(parcel: Parcel, listing: dict[str, RepoFile]) -> list[str]:
    """Names of files that are missing, unexpected, or differ from those of the parcel."""
    from huggingface_hub.utils.sha import git_hash

    expected = parcel.files()
    wrong = expected.keys() ^ listing.keys()
    for name in expected.keys() & listing.keys():
        there = listing[name]
        found = there.lfs.sha256 if there.lfs else there.blob_id
        wanted = expected[name].sha256 if there.lfs else git_hash((parcel.directory / name).read_bytes())
        if (there.size, found) != (expected[name].size, wanted):
            wrong.add(name)
    return sorted(wrong)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the client as RemoteError, without their text, which may quote a secret."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        yield
    except RemoteError:
        raise
    except Exception as caught:
        error: BaseException = caught
        while isinstance(error, RuntimeError) and error.__cause__ is not None:  # the client's threads wrap theirs
            error = error.__cause__
        if isinstance(error, HfHubHTTPError) and error.response is not None:
            status = error.response.status_code
            if status in (408, 409, 412, 425, 429) or status >= 500:
                asked = error.response.headers.get("Retry-After", "")  # the Hub states seconds, never a date
                pause = float(asked) if asked.isdigit() else None
                raise RemoteError(f"the Hub answered {status}", retry_after=pause) from None
            raise RemoteError(_REFUSALS.get(status, f"the Hub answered {status}"), "refused") from None
        if isinstance(error, (httpx2.HTTPError, LocalEntryNotFoundError)):
            raise RemoteError(f"the Hub cannot be reached ({type(error).__name__})") from None
        raise


_REFUSALS = {
    401: "the Hub does not accept the token (401); set a valid HF_TOKEN or run `hf auth login`",
    403: "the token may not write there (403); use one with write access, or another `repo`",
    404: "the Hub has no such repository, or hides it from this token (404); check `repo` and the token",
    413: "the Hub refuses files of this size (413)",
}
