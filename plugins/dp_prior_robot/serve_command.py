"""Commands that serve policies to robots: `serve` one, and `trial`, in which a person scores several blindly."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dp_prior.cli.command import Command
from dp_prior.cli.options import PATH, FiniteRange, modules_option
from dp_prior.cli.output import echo, say
from dp_prior.files.printable import redact
from dp_prior_foreign.pairs import new_names

if TYPE_CHECKING:
    import socket

    from dp_prior.inference.chunking import Policy


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How a server answers; `_ANSWER_OPTIONS` explain the fields on the command line."""

    history: str = "client"
    merge: str = "naive"
    texts: Path | None = None
    rename: tuple[str, ...] = ()
    ranges_tell: float = 2.0
    ranges_refuse: float | None = None
    actions: str = "tell"
    actions_factor: float = 2.0
    frames: str = "tell"
    frame_s: float = 1.0

    def settings_for(self, policy: Policy) -> dict[str, Any]:
        """Settings of a `Session` of a policy.

        Raises:
            ConfigError: limits contradict each other, or the texts cannot be embedded for this policy.
        """
        from dp_prior.config import errors_of
        from dp_prior.inference.instructions import Instructions
        from dp_prior_client.onboard.action_limits import ActionLimits
        from dp_prior_client.onboard.frame_watch import UNWATCHED, FrameLimits
        from dp_prior_client.onboard.range_watch import RangeLimits

        with errors_of("--ranges-tell, --ranges-refuse"):
            ranges = RangeLimits(self.ranges_tell, math.inf if self.ranges_refuse is None else self.ranges_refuse)
        with errors_of("--texts"):
            instructions = Instructions(policy.spec, self.texts)
        is_unwatched = self.frames == "ignore"
        return {
            "history": self.history,
            "merge": merge_of(self.merge),
            "renames": new_names(self.rename),
            "ranges": ranges,
            "instructions": instructions,
            "actions": ActionLimits(self.actions, self.actions_factor),
            "frames": UNWATCHED if is_unwatched else FrameLimits(self.frame_s, self.frames, self.frames),
        }


_LISTENING_OPTIONS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all."),
    click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for a free one."),
    click.option("--token-file", type=PATH, help="File with the key that clients must show."),
    click.option("--insecure", is_flag=True, help="Let other machines connect without a key."),
)
_ANSWER_OPTIONS = (
    click.option(
        "--history",
        type=click.Choice(["client", "server"]),
        default=AnswerOptions.history,
        show_default=True,
        help="Who keeps past observations of stock clients; server if they ask at every control step.",
    ),
    click.option(
        "--merge",
        type=click.Choice(["naive", "guided", "prefix"]),
        default=AnswerOptions.merge,
        show_default=True,
        help="How a chunk follows the unfinished one that a client sends (docs/realtime.md).",
    ),
    click.option("--texts", type=PATH, help="Folder of embeddings, or of the model, for instructions."),
    click.option(
        "--rename",
        multiple=True,
        metavar="THEIRS=OURS",
        help="Read an observation by a client's name, too; repeatable.",
    ),
    click.option(
        "--ranges-tell",
        default=AnswerOptions.ranges_tell,
        show_default=True,
        type=FiniteRange(min=1),
        help="Log an observation beyond this factor of its range in training (docs/robot.md).",
    ),
    click.option("--ranges-refuse", type=FiniteRange(min=1), help="Refuse an observation beyond this factor."),
    click.option(
        "--actions",
        type=click.Choice(["tell", "refuse", "clip"]),
        default=AnswerOptions.actions,
        show_default=True,
        help="What happens to an action far from those of training (docs/robot.md).",
    ),
    click.option(
        "--actions-factor",
        default=AnswerOptions.actions_factor,
        show_default=True,
        type=FiniteRange(min=1),
        help="How far that is, in ranges, steps and distances of training.",
    ),
    click.option(
        "--frames",
        type=click.Choice(["tell", "refuse", "ignore"]),
        default=AnswerOptions.frames,
        show_default=True,
        help="Log, refuse or pass over frames of a camera that is frozen or unlike training (docs/robot.md).",
    ),
    click.option(
        "--frame-s",
        default=AnswerOptions.frame_s,
        show_default=True,
        type=FiniteRange(min=0),
        help="Seconds after which a camera that gives the same frame is frozen.",
    ),
)


def serving_options(command: Callable) -> Callable:
    """The options that `serve` and `trial` share."""
    for option in reversed((*_LISTENING_OPTIONS, *_ANSWER_OPTIONS)):
        command = option(command)
    return command


@contextlib.contextmanager
def bound(host: str, port: int, token_file: Path | None, insecure: bool) -> Iterator[tuple[socket.socket, str | None]]:
    """The socket of a server, and the key that clients must show."""
    from dp_prior_robot.listener import bind
    from dp_prior_robot.serving.token_file import read_token

    token = None if token_file is None else read_token(token_file)
    remedy = "give --token-file, whose key clients must show, or say --insecure"
    with bind(host, port, is_protected=insecure or token is not None, remedy=remedy) as listener:
        yield listener, token


@contextlib.contextmanager
def not_held_up() -> Iterator[None]:
    """A prediction that hangs ends the process, with the stacks of all threads; else its thread would be waited for."""
    from dp_prior.run.exit_file import FAILED
    from dp_prior_robot.serving.policy_server import HangError

    try:
        yield
    except HangError as error:
        echo(f"error: {error}; the stacks of its threads follow", err=True)
        faulthandler.dump_traceback()
        os._exit(FAILED)


def merge_of(name: str) -> Any:
    """The record of a way to merge; None for naive."""
    from dp_prior.inference.chunking import Guided, Prefix

    return {"naive": None, "guided": Guided(), "prefix": Prefix()}[name]


@click.command(cls=Command, section="Robot", example="dp-prior serve runs/mine --host 0.0.0.0 --token-file key")
@modules_option
@click.argument("checkpoint")
@serving_options
@click.option("--guidance-scale", type=float, help="Instead of the policy's own (docs/sampling.md).")
@click.option("--seed", default=0, show_default=True, help="Determines the noise, with episode and step.")
@click.option("--device", default="cpu", show_default=True, help="Where the policy runs, for example cuda.")
@click.option("--max-connections", default=16, show_default=True, type=click.IntRange(min=1), help="Clients at once.")
@click.option("--max-message", "max_mib", type=click.IntRange(min=1), help="MiB; by default what the policy may need.")
@click.option(
    "--idle",
    "idle_s",
    default=3600.0,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Seconds without a request before closing.",
)
@click.option("--log", "ticks", type=PATH, help="Folder of a log of every request (docs/robot.md).")
@click.option(
    "--as",
    "protocol",
    type=click.Choice(["openpi", "vla-eval"]),
    default="openpi",
    show_default=True,
    help="Protocol of the clients; vla-eval for the benchmarks of vla-evaluation-harness (docs/robot.md).",
)
@click.option("--dry", is_flag=True, help="Show what would be commanded, and answer that the robot stays where it is.")
@click.option(
    "--still",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --dry: the command under which a number without a known position stays; repeatable.",
)
def serve(
    checkpoint: str,
    host: str,
    port: int,
    token_file: Path | None,
    insecure: bool,
    guidance_scale: float | None,
    seed: int,
    device: str,
    max_connections: int,
    max_mib: int | None,
    idle_s: float,
    ticks: Path | None,
    protocol: str,
    dry: bool,
    still: tuple[str, ...],
    **answers: Any,
) -> None:
    """Serve a policy to robots or benchmarks (docs/robot.md); SIGTERM or Ctrl-C ends it."""
    import asyncio

    from dp_prior.config import errors_of
    from dp_prior_client.onboard.dry_run import DryRun
    from dp_prior_client.onboard.tick_log import TickLog
    from dp_prior_robot.candidate import Candidate
    from dp_prior_robot.serving.policy_server import PolicyServer, ServerLimits, most_bytes, until_signal

    if still and not dry:
        raise click.UsageError("--still is for --dry")
    if protocol == "vla-eval" and (token_file or ticks or dry or max_mib is not None):
        raise click.UsageError("--token-file, --log, --dry and --max-message are for --as openpi")

    with bound(host, port, token_file, insecure) as (listener, token):
        candidate = Candidate(checkpoint)
        if candidate.is_export and (guidance_scale is not None or device != "cpu"):
            raise click.UsageError("--guidance-scale and --device are for checkpoints, not for exports")
        policy = candidate.load(guidance_scale=guidance_scale, device=device)
        limits = ServerLimits(max_connections, most_bytes(policy.spec) if max_mib is None else max_mib << 20, idle_s)
        name = redact(checkpoint.rstrip("/").rpartition("/")[2])
        if protocol == "vla-eval":
            from dp_prior_robot.serving.harness import HarnessServer

            settings = AnswerOptions(**answers).settings_for(policy)
            settings = {key: value for key, value in settings.items() if key != "history"}
            harness = HarnessServer(policy, name=name, seed=seed, connections=max_connections, report=say, **settings)
            asyncio.run(until_signal(harness.run, listener))
            return
        options = {"token": token, "seed": seed, "limits": limits, **AnswerOptions(**answers).settings_for(policy)}
        with contextlib.ExitStack() as logs, not_held_up():
            options["log"] = None if ticks is None else logs.enter_context(TickLog(ticks))
            with errors_of("--dry, --still"):
                options["dry"] = dry and DryRun(_numbers(still))
                server = PolicyServer(policy, name=name, report=say, **options)
            asyncio.run(server.run_until_signal(listener))


def _numbers(pairs: tuple[str, ...]) -> dict[str, float]:
    """Numbers by name, of `NAME=VALUE`. Raises ValueError if a value is no number."""
    numbers = {}
    for name, value in new_names(pairs, "--still").items():
        try:
            numbers[name] = float(value)
        except ValueError:
            raise ValueError(f"{name}={value} gives no number; expected NAME=VALUE, such as gripper=0.04") from None
    return numbers
