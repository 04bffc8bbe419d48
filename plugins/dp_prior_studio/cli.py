"""Commands that show: a data set, runs, and runs that are going on."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from dp_prior.cli.command import Command, import_modules
from dp_prior.cli.options import PATH, check_readable, check_spelling, late_modules_option, modules_option, refuse_given
from dp_prior.cli.output import echo, say


@click.command(cls=Command, section="Data", example="dp-prior inspect recordings --write-config mine.json")
@modules_option
@click.argument("place", metavar="DATA_OR_CONFIG")
@click.option("--html", type=PATH, help="Write a page with everything that was found.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, with their codes.")
@click.option("--write-config", type=PATH, help="Write a configuration that trains on the data.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY.KEY=VALUE",
    help="Override a setting; of a data set data.action, such as data.action.key=command. Repeatable.",
)
def inspect(
    place: str, html: Path | None, as_json: bool, write_config: Path | None, overrides: tuple[str, ...]
) -> None:
    """Show a data set and its faults, given a path, user/name on the Hub, or a configuration (docs/pages.md). Exit code
    65 if it cannot be trained on."""
    from dp_prior.files.regular_files import expanded

    if (path := expanded(place)).suffix == ".json":
        check_readable(path)
        check_spelling(path, overrides)
    from dp_prior.run.exit_file import BAD_DATA
    from dp_prior_studio.inspection.inspect import inspect as look
    from dp_prior_studio.inspection.inspect import next_command
    from dp_prior_studio.inspection.inspect import write_config as propose
    from dp_prior_studio.pages.data_page import summary, write_inspection

    inspections = look(place, overrides)
    tell = partial(echo, err=as_json)
    if as_json:
        import json

        content = {"version": 1, "data_sets": [inspection.to_json() for inspection in inspections]}
        echo(json.dumps(content, indent=2), whole=True)
    else:
        echo("\n".join(summary(inspections)))
    if html is not None:
        tell(f"wrote {write_inspection(inspections, html, Path(place).name)}")
    if write_config is not None:
        propose(inspections, write_config)
        tell(f"wrote {write_config}\nnext\n  dp-prior train {shlex.quote(str(write_config))} --check")
    elif not as_json and (command := next_command(inspections, place)):
        command += [f"--set={override}" for override in overrides]
        echo(f"next\n  {shlex.join(command)}")
    if any(inspection.has_errors for inspection in inspections):
        sys.exit(BAD_DATA)


HOST, PORT = "127.0.0.1", 8001
"""Where pages are served unless the options say otherwise."""


def listening_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that serves pages."""
    for option in (
        click.option("--insecure", is_flag=True, help="Let other machines connect; there is no password."),
        click.option(
            "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0 for a free one."
        ),
        click.option("--host", default=HOST, show_default=True, help="Address to listen on."),
    ):
        command = option(command)
    return command


@click.command(cls=Command, section="Train and measure", example="dp-prior report runs/a runs/b --html report.html")
@late_modules_option
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--html", type=PATH, help="The page; by default report.html in the one run.")
@click.option("--live", is_flag=True, help="Serve the pages of all runs below a directory, while they train.")
@listening_options
def report(
    runs: tuple[Path, ...],
    html: Path | None,
    live: bool,
    host: str,
    port: int,
    insecure: bool,
    modules: tuple[str, ...],
) -> None:
    """Write one HTML page about a run, about several runs side by side, or about a folder of `--log`; all may grow.
    With --live serve the pages of all runs below a directory; ends on Ctrl-C or SIGTERM."""
    if live:
        refuse_given(["html"], "--live serves pages and writes none")
        if len(runs) > 1:
            raise click.UsageError(f"--live takes one directory, below which all runs are served, not {len(runs)}")
        serve_pages(runs[0], host, port, insecure, modules)
        return
    refuse_given(["host", "port", "insecure"], "only --live serves pages; add --live")
    import_modules(modules)
    from dp_prior.run.scores import PAGE
    from dp_prior_studio.pages.report import write_report

    if html is None and len(runs) > 1:
        raise click.UsageError("--html says where the page of several runs goes")
    echo(f"wrote {write_report(runs, html or runs[0] / PAGE)}")


@click.command(cls=Command, section="Train and measure", hidden=True)
@late_modules_option
@click.argument("runs", type=PATH)
@listening_options
def watch(runs: Path, host: str, port: int, insecure: bool, modules: tuple[str, ...]) -> None:
    """Serve the pages of all runs below a directory: an earlier spelling of `dp-prior report --live`."""
    serve_pages(runs, host, port, insecure, modules)


def serve_pages(runs: Path, host: str, port: int, insecure: bool, modules: tuple[str, ...]) -> None:
    """Serve the pages of all runs below a directory until Ctrl-C or SIGTERM.

    Args:
        modules: names of modules to import first.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        import_modules(modules)
        from dp_prior_robot.listener import bind
        from dp_prior_studio.watching.page_server import WatchServer
        from dp_prior_studio.watching.run_list import Runs

        if not runs.is_dir():
            from dp_prior.files.entry_points import misplaced

            raise FileNotFoundError(f"there is no directory {runs}{misplaced(runs, 'checkpoint')}")
        with bind(host, port, is_protected=insecure) as listener:
            server = WatchServer(Runs(runs), listener, host)
            say(f"watching {len(server.runs.summaries())} runs below {runs} at {server.address}; Ctrl-C ends it")
            server.serve_forever()
