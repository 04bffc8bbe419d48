"""Commands that use a trained model: draw, measure, serve, export, import and average it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dp_prior.cli.command import Command, echo, import_modules, late_modules_option, modules_option, new_names, say
from dp_prior.files.redact import redact

if TYPE_CHECKING:
    from dp_prior.inference.chunking import Policy

weights_option = click.option("--weights", help="An average of train.ema, or `online`; by default the first average.")
guidance_option = click.option("--guidance-scale", type=float, help="Instead of the configured one.")


@click.command(cls=Command)
@late_modules_option
@click.argument("checkpoint")
@click.option("--n", required=True, type=click.IntRange(min=1), help="Number of samples.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="File NAME.npz, or for images a folder of PNG files."
)
@click.option("--labels", help="Names or numbers of classes, with commas, in turn; by default drawn uniformly.")
@click.option("--conditions", type=click.Path(path_type=Path), help=".npz with an array (m, ...) for each condition.")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    default="val",
    show_default=True,
    help="Part of the run's data that gives the conditions where --conditions does not.",
)
@weights_option
@guidance_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change task.sampler, or data.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(min=1), help="Drawn together.")
@click.option("--seed", default=0, show_default=True, help="Determines the noise, with the index of a sample.")
def sample(checkpoint: str, n: int, out: Path, labels: str | None, modules: tuple[str, ...], **options: object) -> None:
    """Draw samples of any model into one file or folder (docs/sampling.md), on any number of ranks. Stop at any time;
    the same command continues."""
    from dp_prior.job.launcher import end_with_parent
    from dp_prior.job.signals import ECHO_S, LAUNCHER_ECHO_S, ignore_repeats_at_exit, stop_on_signal
    from dp_prior.job.stop import Stop

    stop, is_launched = Stop(), "LOCAL_RANK" in os.environ
    with stop_on_signal(stop, LAUNCHER_ECHO_S if is_launched else ECHO_S):
        ignore_repeats_at_exit()
        from dp_prior.commands.sample import Request, draw
        from dp_prior.commands.stored import TIMEOUT_S
        from dp_prior.job.ranks import Ranks, make_accelerator
        from dp_prior.run.files.exit_file import STOPPED

        import_modules(modules)
        request = Request(n, out, labels=tuple(filter(None, (labels or "").split(","))), **options)
        ranks = Ranks(make_accelerator("fp32", TIMEOUT_S), stop)
        with end_with_parent(stop) if is_launched else contextlib.nullcontext():
            is_done = draw(checkpoint, request, ranks, say if ranks.is_main_process else lambda line: None)
        ranks.end()
    if not is_done:
        echo(f"stopped on {stop.reason or 'a signal to another rank'}; the same command goes on", err=True)
        sys.exit(STOPPED)
    if ranks.is_main_process:
        echo(f"wrote {n} samples to {out}")


@click.command(cls=Command)
@modules_option
@click.argument("checkpoint")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    default="val",
    show_default=True,
    help="Part of the run's data to measure on.",
)
@click.option("--max-samples", type=click.IntRange(min=1), help="At most this many, evenly spread; by default all.")
@click.option("--batch-size", default=256, show_default=True, type=click.IntRange(min=1), help="Measured together.")
@weights_option
@guidance_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change data, for example its path.")
@click.option("--seed", default=0, show_default=True, help="Of the fixed noise of each sample.")
def likelihood(checkpoint: str, **options: object) -> None:
    """Measure the bits per dimension of a model, and of simple baselines for comparison (docs/sampling.md)."""
    from dp_prior.commands.likelihood import measure_likelihood
    from dp_prior.commands.stored import TIMEOUT_S
    from dp_prior.job.ranks import Ranks, make_accelerator

    ranks = Ranks(make_accelerator("fp32", TIMEOUT_S))
    found = measure_likelihood(checkpoint, ranks, say if ranks.is_main_process else lambda line: None, **options)
    ranks.end()
    if ranks.is_main_process:
        for name, value in found.items():
            echo(f"{name:<16} {value:.6g}")


@click.command(cls=Command)
@modules_option
@click.argument("checkpoint")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for a free one.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the key that clients must show.")
@click.option("--insecure", is_flag=True, help="Let other machines connect without a key.")
@click.option(
    "--history",
    type=click.Choice(["client", "server"]),
    default="client",
    show_default=True,
    help="Who keeps past observations of stock clients; server if they ask at every control step.",
)
@click.option(
    "--merge",
    type=click.Choice(["naive", "guided", "prefix"]),
    default="naive",
    show_default=True,
    help="How a chunk follows the unfinished one that a client sends (docs/realtime.md).",
)
@click.option(
    "--texts", type=click.Path(path_type=Path), help="Folder of embeddings, or of the model, for instructions."
)
@click.option(
    "--rename", multiple=True, metavar="THEIRS=OURS", help="Read an observation by a client's name, too; repeatable."
)
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
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds without a request before closing.",
)
def serve(
    checkpoint: str,
    host: str,
    port: int,
    token_file: Path | None,
    insecure: bool,
    history: Literal["client", "server"],
    merge: Literal["naive", "guided", "prefix"],
    texts: Path | None,
    rename: tuple[str, ...],
    guidance_scale: float | None,
    seed: int,
    device: str,
    max_connections: int,
    max_mib: int | None,
    idle_s: float,
) -> None:
    """Serve a policy to robots, in openpi's protocol (docs/robot.md); SIGTERM or Ctrl-C ends it."""
    import asyncio

    from dp_prior.config import ConfigError
    from dp_prior.inference.chunking import Guided, Prefix
    from dp_prior.inference.instructions import Instructions
    from dp_prior.inference.serving.policy_server import PolicyServer, ServerLimits, most_bytes, read_token
    from dp_prior.job.listener import bind

    token = None if token_file is None else read_token(token_file)
    remedy = "give --token-file, whose key clients must show, or say --insecure"
    with bind(host, port, is_protected=insecure or token is not None, remedy=remedy) as listener:
        policy = _served(checkpoint, guidance_scale, device)
        limits = ServerLimits(max_connections, most_bytes(policy.spec) if max_mib is None else max_mib << 20, idle_s)
        if texts is not None and "text" not in policy.spec.kinds.values():
            raise click.UsageError("--texts is for policies that read instructions")
        name = redact(checkpoint.rstrip("/").rpartition("/")[2])
        ways = {"naive": None, "guided": Guided(), "prefix": Prefix()}
        options = {"token": token, "history": history, "merge": ways[merge], "seed": seed, "limits": limits}
        options["renames"] = new_names(rename)
        try:
            options["instructions"] = Instructions(policy.spec, texts)
        except ValueError as error:
            raise ConfigError("--texts", [str(error)]) from None
        asyncio.run(PolicyServer(policy, name=name, report=say, **options).run_until_signal(listener))


def _served(checkpoint: str, guidance_scale: float | None, device: str) -> Policy:
    """The policy of a checkpoint or of an export."""
    from dp_prior.config import ConfigError
    from dp_prior.inference.export.exported_policy import POLICY, ExportError
    from dp_prior.inference.export.torch_policy import AgentPolicy
    from dp_prior.inference.load import load_policy

    try:
        if Path(checkpoint, POLICY).is_file():
            if guidance_scale is not None or device != "cpu":
                raise click.UsageError("--guidance-scale and --device are for checkpoints, not for exports")
            return AgentPolicy.load(checkpoint)
        return load_policy(checkpoint, guidance_scale=guidance_scale, device=device)
    except ConfigError:
        raise
    except (ValueError, ExportError) as error:
        raise ConfigError(checkpoint, [str(error)]) from None


@click.command(cls=Command)
@modules_option
@click.argument("run")
@click.option("--relative-width", required=True, type=float, help="Width of the average, as a fraction of the run.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory to write.")
@click.option("--max-error", default=0.1, show_default=True, help="Refuse a larger relative error of the profile.")
def average(run: str, relative_width: float, out: Path, max_error: float) -> None:
    """Reconstruct an average of any width from the power-function averages in the checkpoints of a run: from all
    checkpoints, or up to RUN@step_00012000."""
    from dp_prior.training.posthoc import reconstruct

    made = reconstruct(run, relative_width, out, max_error=max_error)
    echo(
        f"average of relative width {relative_width:g} at step {made.target.step:,} in {made.directory}, from "
        f"{made.n_averages} averages in {made.n_checkpoints} checkpoints; relative error of the profile "
        f"{made.error:.2g}"
    )


@click.command(cls=Command)
@modules_option
@click.argument("checkpoint")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--whole", is_flag=True, help="Everything needed to resume training, not only for inference.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["checkpoint", "onnx", "torch_export", "lerobot"]),
    default="checkpoint",
    show_default=True,
    help="onnx and torch_export write graphs (docs/export.md), lerobot a folder for lerobot-rollout (docs/robot.md).",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change task.sampler in a graph format.")
@click.option(
    "--frames",
    multiple=True,
    metavar="CAMERA=HEIGHTxWIDTH",
    help="Resize this camera's frames in the graph; repeatable.",
)
@click.option("--keys", multiple=True, metavar="OURS=THEIRS", help="lerobot: its key of an observation; repeatable.")
@click.option("--inside", type=click.Choice(["checkpoint", "onnx"]), help="lerobot: form of the policy in the folder.")
@click.option("--address", metavar="HOST:PORT", help="lerobot: dp-prior serve runs the policy there; none is written.")
@click.option("--repo", metavar="USER/NAME", help="lerobot: send the folder to this repository of the Hub, too.")
def export(
    checkpoint: str,
    directory: Path,
    whole: bool,
    layout: str,
    overrides: tuple[str, ...],
    frames: tuple[str, ...],
    keys: tuple[str, ...],
    **lerobot: str | None,
) -> None:
    """Copy a checkpoint, or a run's best checkpoint, to a directory that loads by itself."""
    from dp_prior.commands.export import export_checkpoint, export_policy, frame_sizes

    given = {name: value for name, value in {"keys": keys, **lerobot}.items() if value}
    if layout != "lerobot" and given:
        raise click.UsageError(f"--{next(iter(given))} is for --format lerobot")
    if layout != "checkpoint" and whole:
        raise click.UsageError("--whole is for --format checkpoint")
    if layout in ("checkpoint", "lerobot") and (overrides or frames):
        raise click.UsageError("--set and --frames are for --format onnx and torch_export; a copy is as it was trained")
    if layout == "lerobot":
        from dp_prior.commands.lerobot_export import export_for_lerobot

        if "inside" in given and "address" in given:
            raise click.UsageError("--inside is for a folder with the policy, --address for one without")
        echo("\n".join(export_for_lerobot(checkpoint, directory, **{**given, "keys": new_names(keys, "--keys")})))
        return
    if layout != "checkpoint":
        report = export_policy(checkpoint, directory, layout, overrides, frame_sizes(frames))
        echo(f"exported {checkpoint} to {directory}; largest error {report['largest_error']:.2g} normalised")
        return
    source, digest = export_checkpoint(checkpoint, directory, whole=whole)
    echo(f"exported {source} to {directory}")
    echo(f"its reference on a web server is https://.../{directory.name}#sha256={digest}")


@click.command("import", cls=Command)
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Run directory to write; must be empty.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["lerobot", "diffusion_policy", "improved_diffusion", "dalle2"]),
    help="By default what the files are.",
)
@click.option("--rename", multiple=True, metavar="THEIRS=OURS", help="Name an observation otherwise; repeatable.")
def import_published(source: str, out: Path, layout: str | None, rename: tuple[str, ...]) -> None:
    """Convert a policy of LeRobot (a directory, or user/name on the Hub) or of Diffusion Policy, images of
    improved-diffusion or a prior of DALLE2-pytorch to a run (docs/import.md)."""
    from dp_prior.commands import imported

    echo(imported.import_published(source, out, layout, new_names(rename)))
