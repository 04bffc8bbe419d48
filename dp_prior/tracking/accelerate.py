"""One adapter for the other trackers that accelerate supports.

accelerate forwards numbers and the configuration. Pictures, files and errors go through the service's own client, for
the services listed in the tables at the end, and are ignored for other services.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, field_validator

from dp_prior.checkpoints.clock import Progress
from dp_prior.config.overrides import flat
from dp_prior.files.durable import temporary_directory
from dp_prior.files.hub_files import has_token
from dp_prior.files.printable import is_secret_name
from dp_prior.places.saver import PROBLEM
from dp_prior.tracking.logger import Logger, LoggerRecord, RunFacts
from dp_prior.tracking.media import SHOWN_VIDEOS, pixels

TAG = "dp_prior.run_id"


class AccelerateConfig(LoggerRecord):
    """A service that accelerate has a tracker for. Keys and tokens come from the service's own login or environment.

    Characters that some services reject are replaced in metric names: `mse[steps=16]` becomes `mse_steps_16`. The x
    axis is the optimizer step.
    """

    type: Literal["accelerate"] = "accelerate"

    tracker: Literal["trackio", "mlflow", "aim", "comet_ml", "clearml", "swanlab", "dvclive"]
    """The service; its package must be installed."""

    project: str = Field(default="dp_prior", min_length=1)
    """Project, or experiment, that the run belongs to."""

    options: dict[str, JsonValue] = {}
    """Passed to the service's own start function, for example `{"space_id": "me/runs"}` for trackio; for mlflow also
    `tracking_uri`, for aim and mlflow `logging_dir`. Secrets are refused, since a configuration is saved and shown."""

    @property
    def service(self) -> str:
        return self.tracker

    @field_validator("options")
    @classmethod
    def _no_secrets(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        secrets = sorted(name for name in flat(options, numbered=True) if any(map(is_secret_name, name.split("."))))
        if secrets:
            raise ValueError(
                f"{', '.join(secrets)} would be saved with the run and shown; log in with the service's own command or "
                f"set its environment variable instead"
            )
        return options

    def check_account(self) -> list[str]:
        """See `LoggerRecord`; trackio needs a token for a space of the Hub, and none on this machine."""
        if self.tracker != "trackio":
            return []
        from trackio.utils import resolve_space_id_and_server_url

        space, _ = resolve_space_id_and_server_url(self.options.get("space_id"), self.options.get("server_url"))
        remedy = "set HF_TOKEN or run `hf auth login`, or log here: remove space_id of options and TRACKIO_SPACE_ID"
        return [f"{PROBLEM}trackio: no token for the space {space}; {remedy}"] if space and not has_token() else []

    def create(self) -> AccelerateLogger:
        """Create a logger that starts the service when the run begins.

        Raises:
            ImportError: the service's package is not installed.
        """
        from accelerate.utils import imports

        is_available = getattr(imports, f"is_{self.tracker}_available", None)
        if is_available is None:
            raise ImportError(f'this accelerate has no tracker "{self.tracker}"; pip install -U accelerate')
        if not is_available():
            hint = f"dp_prior[{self.tracker}]" if self.tracker in ("trackio", "mlflow") else self.tracker
            raise ImportError(f'the logger "{self.tracker}" is not installed: pip install "{hint}"')
        return AccelerateLogger(self)


class AccelerateLogger(Logger):
    """Forwards to a tracker of accelerate; see the module."""

    def __init__(self, config: AccelerateConfig):
        self.name = config.tracker
        self._config = config
        self._tracker: Any = None

    def begin(self, run: RunFacts) -> None:
        """Start a run of the service, or resume the run of this identity if the service supports resuming."""
        from accelerate import PartialState, tracking

        PartialState()  # accelerate's trackers read the rank from this state
        kind = tracking.LOGGER_TYPE_TO_CLASS[self.name]
        options = dict(self._config.options)
        place = [str(options.pop("logging_dir", run.directory / self.name))] if kind.requires_logging_directory else []
        options |= _identify(self.name, self._config.project, run, options)
        self._tracker = kind(self._config.project, *place, **options)
        if hasattr(self._tracker, "start"):  # before accelerate 1.9 the constructor started the tracker
            self._tracker.start()
        try:
            settings = flat(run.config, numbered=True)
            self._tracker.store_init_configuration(_new_to_mlflow(settings) if self.name == "mlflow" else settings)
        except Exception:
            with contextlib.suppress(Exception):  # the first error matters, not an error of the cleanup
                self._tracker.finish()  # otherwise the next attempt would meet a run in progress
            raise

    def log(self, metrics: dict[str, float], progress: Progress) -> None:
        """Forward numbers, with `samples_seen`."""
        values = {**metrics, "samples_seen": progress.samples_seen}
        self._tracker.log({_plain(name): value for name, value in values.items()}, step=progress.global_step)

    def log_images(self, images: dict[str, Path], progress: Progress) -> None:
        """Show pictures and videos."""
        for name, path in images.items():
            if self.name in _IMAGES:
                _IMAGES[self.name](self._tracker, _plain(name), path, progress.global_step)

    def log_file(self, name: str, path: Path, progress: Progress) -> None:
        """Store a file."""
        if self.name in _FILE_SENDERS:
            _FILE_SENDERS[self.name](self._tracker, name, path)

    def log_error(self, message: str, progress: Progress) -> None:
        """Note an error."""
        if self.name in _ERRORS:
            _ERRORS[self.name](self._tracker, message, progress.global_step)

    def close(self) -> None:
        """End the run."""
        self._tracker.finish()


def _identify(tracker: str, project: str, run: RunFacts, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make the service resume this run; removes used entries from `options`."""
    identity = run.identity
    if tracker == "trackio":
        with contextlib.suppress(ImportError):  # trackio drops values logged while a thread imports matplotlib
            import matplotlib.figure  # noqa: F401
        return {"name": f"{identity.name}-{identity.id}", "resume": "allow", "auto_log_cpu": False} | options
    if tracker == "mlflow":
        import mlflow

        if "tracking_uri" in options:
            mlflow.set_tracking_uri(options.pop("tracking_uri"))
        _create_database(mlflow.get_tracking_uri())
        client = mlflow.MlflowClient()
        experiment = client.get_experiment_by_name(project)
        runs = experiment and client.search_runs([experiment.experiment_id], f"tags.`{TAG}` = '{identity.id}'")
        tags = {TAG: identity.id, **options.pop("tags", {})}
        return {"run_name": identity.name, "tags": tags, "run_id": runs[0].info.run_id if runs else None}
    if tracker == "swanlab":
        place = {"log_dir": str(run.directory / "swanlab")}
        return {"id": identity.id, "name": identity.name, "resume": "allow"} | place | options
    if tracker == "dvclive":
        return {"dir": str(run.directory / "dvclive"), "resume": True} | options
    return {}


def _new_to_mlflow(settings: dict[str, Any]) -> dict[str, Any]:
    """Select the settings that are not parameters of the MLflow run yet, since MLflow refuses to change a parameter. A
    changed setting, such as the budget of a resumed run, becomes a tag of the same name."""
    import mlflow

    logged = mlflow.active_run().data.params
    for name, value in settings.items():
        if logged.get(name, str(value)) != str(value):
            mlflow.set_tag(name, value)
    return {name: value for name, value in settings.items() if name not in logged}


def _create_database(uri: str) -> None:
    """Create MLflow's SQLite file in a temporary folder, since a file with interrupted migrations never opens again."""
    import mlflow

    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(path) as folder:
        mlflow.MlflowClient(f"sqlite:///{folder / path.name}").search_experiments()
        if not path.exists():  # otherwise another process was faster
            os.rename(folder / path.name, path)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_./ -]+", "_", name).rstrip("_")


def _trackio_image(tracker: Any, name: str, path: Path, step: int) -> None:
    import trackio

    kind = trackio.Video if path.suffix.lower() in (*SHOWN_VIDEOS, ".gif") else trackio.Image
    tracker.log({name: kind(str(path))}, step=step)


def _mlflow_artifact(path: Path, folder: str) -> None:
    import mlflow

    mlflow.log_artifact(str(path), artifact_path=folder)


def _mlflow_error(tracker: Any, message: str, step: int) -> None:
    import mlflow

    mlflow.log_text(message + "\n", artifact_file=f"errors/{step:08d}.txt")


def _trackio_error(tracker: Any, message: str, step: int) -> None:
    import trackio

    trackio.alert(title="error", text=message, level=trackio.AlertLevel.ERROR)


_IMAGES: dict[str, Callable[[Any, str, Path, int], None]] = {
    "trackio": _trackio_image,
    "mlflow": lambda tracker, name, path, step: _mlflow_artifact(path, f"media/{name}"),
    "aim": lambda tracker, name, path, step: tracker.log_images({name: pixels(path)}, step=step),
    "clearml": lambda tracker, name, path, step: tracker.log_images({name: pixels(path)}, step=step),
    "swanlab": lambda tracker, name, path, step: tracker.log_images({name: [pixels(path)]}, step=step),
    "comet_ml": lambda tracker, name, path, step: tracker.tracker.log_image(pixels(path), name=name, step=step),
}
_FILE_SENDERS: dict[str, Callable[[Any, str, Path], None]] = {
    "mlflow": lambda tracker, name, path: _mlflow_artifact(path, "files"),
    "comet_ml": lambda tracker, name, path: tracker.tracker.log_asset(str(path), file_name=name),
}
_ERRORS: dict[str, Callable[[Any, str, int], None]] = {"mlflow": _mlflow_error, "trackio": _trackio_error}
