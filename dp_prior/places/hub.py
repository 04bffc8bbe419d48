"""The Hugging Face Hub: checkpoints sent to a repository, and read from one.

Each checkpoint is an immutable folder `checkpoints/step_00012000`. The root holds the best checkpoint as the Hub and
other libraries expect it: `model.safetensors`, `config.json`, the model card, and the pointer `best.json`. One commit
replaces all root files, so every revision of the repository is a complete model. The token comes from HF_TOKEN or
`hf auth login` and is never written anywhere; HF_ENDPOINT and HF_HUB_OFFLINE are obeyed.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dp_prior.checkpoints.format import MANIFEST, MODEL_FILES, FileEntry
from dp_prior.files.durable import link_or_copy
from dp_prior.files.hub_files import ANSWER_S, REPO, HubError, HubRepository, is_offline, too_large
from dp_prior.places.card import model_card
from dp_prior.places.destination import DeliveryReport, delivered, folders
from dp_prior.places.errors import NoPlaceError, RemoteError
from dp_prior.places.parcel import Parcel
from dp_prior.places.pointer import LARGEST_POINTER, Pointer, movable
from dp_prior.places.source import Source
from dp_prior.places.upload import UploadConfig

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

CARD, CARD_MEDIA = "README.md", "media"

log = logging.getLogger(__name__)


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
        return f"huggingface {self.repo}"

    def destination(self) -> HubDestination:
        return HubDestination(self)


class HubDestination:
    """A repository to send to; see `Destination`."""

    def __init__(self, record: HuggingFaceSaverConfig):
        self.record = record
        self._api = _connect()

    def check(self) -> str:
        """Check that the token may write; creates the repository."""
        with _translated(self.record.repo):
            user = self._api.whoami()["name"]
            self._head()
            self._api.auth_check(self.record.repo, write=True)
        return f"user {user} may write to {self.record.repo}"

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> DeliveryReport:
        """Upload the folder, verify it, move the pointer, tag; see `Destination`."""
        from huggingface_hub import CommitOperationAdd

        with _translated(self.record.repo):
            files = parcel.files()
            folder, is_there = self._folder(parcel.name, parcel.directory, files)
            if not is_there:
                spend()
                self._commit_folder(folder, parcel.directory, files)
            # Pointers move in one commit on top of the revision that was read: if another process committed meanwhile
            # the Hub answers 412, and the next attempt reads the new pointer.
            head = self._head()
            pointer = parcel.pointer(folder)
            kinds, remark = movable(parcel.kinds, pointer, lambda kind: self._pointer(kind, head))
            if kinds:
                operations = [CommitOperationAdd(f"{kind}.json", pointer.encode()) for kind in kinds]
                if "best" in kinds:
                    operations += self._root_files(parcel, folder, head)
                spend()
                repo, message = self.record.repo, f"{' and '.join(kinds).capitalize()}: step {pointer.step}"
                commit = self._api.create_commit(repo, operations, commit_message=message, parent_commit=head)
                self._api.create_tag(repo, tag=folder.rpartition("/")[2], revision=commit.oid, exist_ok=True)
        return delivered(folder, kinds, remark)

    def _head(self) -> str:
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            return self._api.repo_info(self.record.repo).sha
        except RepositoryNotFoundError:
            self._api.create_repo(self.record.repo, private=self.record.private, exist_ok=True)
            return self._api.repo_info(self.record.repo).sha

    def _folder(self, name: str, directory: Path, files: Mapping[str, FileEntry]) -> tuple[str, bool]:
        """Choose the folder for a checkpoint, and tell whether it is complete; skips folders with other files."""
        head = self._head()
        for folder in folders(name):
            listing = self._listing(folder, head)
            if not listing or not _differences(directory, files, listing):
                return folder, bool(listing)
        raise AssertionError("there is always another name")

    def _commit_folder(self, folder: str, directory: Path, files: Mapping[str, FileEntry]) -> None:
        """Commit the files of a checkpoint to its folder, and compare them with the listing of the commit."""
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(f"{folder}/{name}", directory / name) for name in files]
        message = f"Add {folder.removeprefix('checkpoints/')}"
        commit = self._api.create_commit(self.record.repo, operations, commit_message=message)
        wrong = _differences(directory, files, self._listing(folder, commit.oid))
        if wrong:
            raise RemoteError(f"{self.record.repo} does not hold what was sent: {', '.join(wrong)}")

    def _root_files(self, parcel: Parcel, folder: str, head: str) -> list[Any]:
        """The files at the root for a new best checkpoint; weights are copied within the repository."""
        from huggingface_hub import CommitOperationAdd, CommitOperationCopy

        directory, manifest, operations = parcel.directory, parcel.manifest.only(MODEL_FILES), []
        for name in MODEL_FILES:
            if name not in manifest.files:
                continue
            if name.endswith(".safetensors"):
                operations.append(CommitOperationCopy(f"{folder}/{name}", name, src_revision=head))
            else:
                operations.append(CommitOperationAdd(name, directory / name))
        media = {f"{CARD_MEDIA}/{name}": path for name, path in parcel.media().items()}
        card = model_card(
            directory,
            parcel.manifest,
            self.record.repo,
            license_name=self.record.license,
            folder=folder,
            media=list(media),
            scores=parcel.scores,
        )
        contents = {MANIFEST: manifest.encode(), **media, CARD: card.encode()}
        return operations + [CommitOperationAdd(name, content) for name, content in contents.items()]

    def _pointer(self, kind: str, revision: str) -> Pointer | None:
        with tempfile.TemporaryDirectory() as cache:
            try:
                source = HubSource(HubRepository(self.record.repo, revision), cache_dir=cache)
                return Pointer.parse(source.read(f"{kind}.json", LARGEST_POINTER))
            except FileNotFoundError:
                return None

    def _listing(self, folder: str, revision: str) -> dict[str, RepoFile]:
        """List the files in a folder by name; an empty dict for a missing folder."""
        from huggingface_hub import RepoFile
        from huggingface_hub.errors import RemoteEntryNotFoundError

        try:
            entries = list(self._api.list_repo_tree(self.record.repo, folder, revision=revision, recursive=True))
        except RemoteEntryNotFoundError:
            return {}
        return {file.path.removeprefix(f"{folder}/"): file for file in entries if isinstance(file, RepoFile)}


class HubSource(Source):
    """A repository to read from, at one commit; see `Source`.

    The first file fixes the commit, so that all files are of one revision. When the Hub cannot be reached, or
    HF_HUB_OFFLINE is set, files come from the client's cache.
    """

    def __init__(self, repository: HubRepository, **options: Any):
        """
        Args:
            options: keywords of `hf_hub_download`, such as `token` and `cache_dir`.
        """
        self._repository = repository
        self._options = options

    @property
    def revision(self) -> str | None:
        """The commit of the first file; before the first file the requested revision."""
        return self._repository.revision

    def pin(self) -> None:
        """Ask the Hub for the commit, so that the client's cache cannot give an older commit; warns in offline mode."""
        from huggingface_hub import HfApi

        if is_offline():
            log.warning(
                "hf://%s is read from the client's cache, and may be old: HF_HUB_OFFLINE is set", self._repository
            )
            return
        with self._reading(), self._repository.translated():
            api, place = HfApi(library_name="dp_prior", token=self._options.get("token")), self._repository
            info = place.asked(lambda: api.repo_info(place.name, revision=place.revision, timeout=ANSWER_S))
        self._repository = dataclasses.replace(place, revision=info.sha)

    def read(self, path: str, largest: int) -> bytes:
        """See `Source`."""
        file = self._fetch(path, largest)
        commit = file.parents[path.count("/")].name  # the client's cache holds snapshots/COMMIT/PATH
        self._repository = dataclasses.replace(self._repository, revision=commit)
        size = file.stat().st_size
        if size > largest:
            raise RemoteError(f"hf://{self._repository} {too_large(path, size, largest)}")
        return file.read_bytes()

    def download(self, path: str, size: int, target: Path, *, anew: bool) -> None:
        """See `Source`."""
        target.unlink(missing_ok=True)
        link_or_copy(self._fetch(path, size, anew=anew).resolve(), target)

    def _fetch(self, path: str, largest: int, *, anew: bool = False) -> Path:
        options = {**self._options, "force_download": anew or self._options.get("force_download", False)}
        with self._reading():
            return self._repository.file(path, largest, **options)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        from huggingface_hub import get_token

        try:
            yield
        except HubError as error:
            problem = f"hf://{error}"
            if error.reason == "no file":
                raise FileNotFoundError(problem) from None
            if error.reason in ("no repository", "uncached"):
                problem += f" (nor is {self._repository.name} a path here)"
            if error.reason == "no repository":
                raise NoPlaceError(problem, may_be_hidden=not (self._options.get("token") or get_token())) from None
            if error.reason == "no revision":
                raise NoPlaceError(problem) from None
            raise RemoteError(problem, "refused" if error.reason == "settings" else "unavailable") from None


def publish(
    directory: Path,
    repo: str,
    message: str,
    *,
    private: bool = True,
    token: str | None = None,
    branch: str | None = None,
) -> str:
    """Put all files of a folder at the root of a repository, in one commit; returns the commit's page.

    Args:
        private: whether a missing repository is created as private.
        branch: the branch, created if missing; None for `main`.

    Raises:
        RemoteError: the Hub refuses, or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd

    with _translated(repo):
        api = _connect(token)
        api.create_repo(repo, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repo, branch=branch, exist_ok=True)
        paths = sorted(filter(Path.is_file, directory.rglob("*")))
        files = [CommitOperationAdd(path.relative_to(directory).as_posix(), path) for path in paths]
        return api.create_commit(repo, files, commit_message=message, revision=branch).commit_url


def _connect(token: str | None = None) -> HfApi:
    """Create a client with a token.

    Raises:
        RemoteError: the client is in offline mode, or has no token.
    """
    from huggingface_hub import HfApi, get_token

    if is_offline():
        raise RemoteError("HF_HUB_OFFLINE is set, so nothing is sent", "offline")
    if not token and not get_token():
        raise RemoteError("there is no Hugging Face token; set HF_TOKEN or run `hf auth login`", "refused")
    return HfApi(library_name="dp_prior", token=token)


def _differences(directory: Path, files: Mapping[str, FileEntry], listing: dict[str, RepoFile]) -> list[str]:
    """Names of files that are missing, unexpected, or differ from the files in a directory."""
    from huggingface_hub.utils.sha import git_hash

    wrong = files.keys() ^ listing.keys()
    for name in files.keys() & listing.keys():
        remote, local = listing[name], files[name]
        if remote.lfs:
            is_equal = (remote.size, remote.lfs.sha256) == (local.size, local.sha256)
        else:
            is_equal = (remote.size, remote.blob_id) == (local.size, git_hash((directory / name).read_bytes()))
        if not is_equal:
            wrong.add(name)
    return sorted(wrong)


@contextmanager
def _translated(repo: str) -> Iterator[None]:
    """Raise the Hub's errors of an upload as RemoteError."""
    try:
        with HubRepository(repo).translated():
            yield
    except HubError as error:
        status = error.status
        if status is None:
            is_refused = error.reason in ("no repository", "settings")
            raise RemoteError(str(error), "refused" if is_refused else "unavailable") from None
        if status in (408, 409, 412, 425, 429) or status >= 500:
            raise RemoteError(f"the Hub answered {status}", retry_after=error.retry_after) from None
        raise RemoteError(_HUB_REFUSALS.get(status, f"the Hub answered {status}"), "refused") from None


_HUB_REFUSALS = {
    401: "the Hub does not accept the token (401); set a valid HF_TOKEN or run `hf auth login`",
    403: "the token may not write there (403); use one with write access, or another `repo`",
    404: "the Hub has no such repository, or hides it from this token (404); check `repo` and the token",
    413: "the Hub refuses files of this size (413)",
}
