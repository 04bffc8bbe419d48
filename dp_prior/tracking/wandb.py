"""Weights & Biases: online, or offline for `wandb sync` later; numbers over our own clock, pictures, videos, files.

Points carry the axes `step` and `samples_seen`, so no point is lost when W&B's own counter is ahead of a resumed run.
If the server cannot be reached or the key is missing, the run is logged offline.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dp_prior.checkpoints.clock import Progress
from dp_prior.files.printable import redact
from dp_prior.places.saver import PROBLEM
from dp_prior.tracking.logger import Logger, LoggerRecord, RunFacts
from dp_prior.tracking.media import SHOWN_VIDEOS, picture_bytes
from dp_prior.tracking.metric_names import find_metric

SHOWN = (".mp4", ".webm", ".gif")  # videos that W&B's page plays
LAUNCH_S = 5.0  # time limit for launching the client's process
PATIENCE_S = 10.0  # after its own timeout the client is killed; 0.27 looks for the state of a run for ever


class WandbConfig(LoggerRecord):
    """Weights & Biases. The key comes from `wandb login` or `WANDB_API_KEY`, never from a configuration."""

    type: Literal["wandb"] = "wandb"

    project: str = Field(default="dp_prior", min_length=1)
    """Project that the run belongs to; `WANDB_PROJECT` replaces the default."""

    entity: str | None = None
    """User or team; null obeys `WANDB_ENTITY`, by default the account's."""

    mode: Literal["online", "offline"] | None = None
    """`offline` only writes to the run directory, for `wandb sync`; null obeys `WANDB_MODE`, by default online."""

    group: str | None = None
    """Runs of one group are shown together."""

    tags: tuple[str, ...] = ()
    """Labels to find the run by."""

    init_timeout_s: float = Field(default=20.0, gt=0)
    """Seconds without an answer after which the server counts as unreachable; the run is then logged offline."""

    def check_account(self) -> list[str]:
        import wandb
        from wandb.sdk.lib.wbauth import read_netrc_auth

        try:
            settings = wandb.setup().settings
        except ValueError as error:  # of a variable such as WANDB_MODE
            return [f"{PROBLEM}wandb: {' '.join(str(error).split())}"]
        is_offline = "offline" in (self.mode, settings.mode) or settings.mode == "disabled"
        has_key = settings.api_key or read_netrc_auth(host=settings.base_url)
        remedy = 'set WANDB_API_KEY or run `wandb login`, or set "mode": "offline"'
        return [] if is_offline or has_key else [f"{PROBLEM}wandb: no API key; {remedy}"]

    def create(self) -> WandbLogger:
        """Create a logger that calls W&B when the run begins."""
        return WandbLogger(self)


class WandbLogger(Logger):
    """Calls the client; see the module."""

    name = "wandb"

    def __init__(self, config: WandbConfig):
        self._config = config
        self._run: Any = None
        self._is_starting = False
        self._is_abandoned = False

    def begin(self, run: RunFacts) -> None:
        """Start the client's run, or resume the run with this id."""
        self._facts = run
        self._started()

    def log(self, metrics: dict[str, float], progress: Progress) -> None:
        """Add a row. The summary of a metric with a known direction also holds its best value."""
        run = self._started()
        for name in metrics.keys() - self._defined:
            metric = find_metric(name, self._facts.metrics)
            if metric is not None and metric.better is not None:
                summary = "min,last" if metric.better == "lower" else "max,last"
                run.define_metric(name, step_metric="step", summary=summary)
            self._defined.add(name)
        self._row(metrics, progress)

    def log_images(self, images: dict[str, Path], progress: Progress) -> None:
        """Show pictures and videos."""
        import wandb

        run = self._started()
        media: dict[str, Any] = {}
        for name, path in images.items():
            kind = path.suffix.lower()
            if kind in SHOWN_VIDEOS and kind not in SHOWN:
                gif = Path(run.dir) / f"{path.stem}.gif"
                gif.write_bytes(picture_bytes(path))
                path, kind = gif, ".gif"
            media[name] = wandb.Video(str(path), format=kind[1:]) if kind in SHOWN else wandb.Image(str(path))
        self._row(media, progress)

    def log_file(self, name: str, path: Path, progress: Progress) -> None:
        """Store a copy of a file with the run."""
        run = self._started()
        copy = Path(run.dir) / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        run.save(str(copy), base_path=run.dir, policy="now")

    def log_error(self, message: str, progress: Progress) -> None:
        """Log an error as a separate row."""
        self._row({"error": message}, progress)

    def close(self) -> None:
        """Wait until all content is uploaded; the client times out shortly before the run stops waiting."""
        if self._run is not None:
            try:
                self._run.finish()
            except Exception:
                self._discard()
                raise

    def abandon(self) -> None:
        """Kill the client's process; otherwise the client's exit hook could delay our exit for ever."""
        self._is_abandoned = True
        end = time.monotonic() + LAUNCH_S
        while self._is_starting and _process() is None and time.monotonic() < end:
            time.sleep(0.02)  # another thread is launching the process
        if self._is_starting or self._run is not None:
            self._discard()

    def _started(self) -> Any:
        """The client's run; starts a run at the first call, and after a run was discarded."""
        if self._run is not None:
            return self._run
        run, mode = self._facts, self._config.mode
        try:
            self._run = self._init(run, mode)
        except Exception as error:
            self._discard()  # a half-started run would still hold the id
            if mode == "offline" or self._is_abandoned:
                raise
            self._run = self._init(run, "offline")
            run.report(
                f"logger 'wandb' could not start ({redact(str(error) or type(error).__name__)}); it writes offline to "
                f"{run.directory / 'wandb'}, to be uploaded with `wandb sync`"
            )
        self._defined: set[str] = set()
        for axis in ("step", "samples_seen"):
            self._run.define_metric(axis, summary="max")
        self._run.define_metric("*", step_metric="step")
        return self._run

    def _discard(self) -> None:
        """Kill the client's process and forget its run, so that the next call starts a new one."""
        import wandb

        self._run = None
        _kill()
        with contextlib.suppress(Exception):  # teardown expects the process that was just killed
            wandb.teardown()

    def _init(self, run: RunFacts, mode: str | None) -> Any:
        import wandb
        from wandb.sdk.lib.service import service_token

        if _process() is None:
            service_token.clear_service_in_env()  # another program's process may still hold the id of a killed run
        config = self._config
        limit = threading.Timer(config.init_timeout_s + PATIENCE_S, _kill)
        limit.daemon = True
        self._is_starting = True
        try:
            if self._is_abandoned:
                raise RuntimeError("the run has ended")
            limit.start()
            is_default = config.project == type(config).model_fields["project"].default
            return wandb.init(
                project=(is_default and wandb.setup().settings.project) or config.project,
                entity=config.entity,
                id=run.identity.id,
                name=run.identity.name,
                group=config.group,
                tags=list(config.tags) or None,
                config=run.config,
                dir=str(run.directory),
                mode=mode,
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(
                    console="off",  # does not capture our output
                    silent=True,
                    disable_code=True,
                    init_timeout=config.init_timeout_s,
                    login_timeout=1.0,  # a background thread cannot prompt for a key
                    finish_timeout=max(1.0, 0.7 * run.patience_s),
                ),
            )
        finally:
            limit.cancel()
            self._is_starting = False

    def _row(self, content: dict[str, Any], progress: Progress) -> None:
        """Log a row; after a failure the next row starts the client again."""
        run = self._started()
        try:
            run.log({**content, "step": progress.global_step, "samples_seen": progress.samples_seen})
        except Exception:
            self._discard()
            raise


def _kill() -> None:
    """Kill the client's process; a call that waits for an answer of this process raises."""
    process = _process()
    if process is not None:
        process.kill()
        process.wait()


def _process() -> Any:
    """The client's process; None if none was started, or if it belongs to the parent that forked this process.

    The client has no public API for this. If the client's internals change, the result is None and a hung client delays
    the exit again; a test would fail.
    """
    from wandb.sdk import wandb_setup

    setup = getattr(wandb_setup, "_singleton", None)
    if getattr(setup, "_pid", None) != os.getpid():
        return None
    return getattr(getattr(getattr(setup, "_connection", None), "_proc", None), "_process", None)
