"""`python -m benchmarks.traffic`: bytes that the ranks of a run send each other in a step, measured on Linux.

Two ranks train on gloo in a network of their own (`unshare --net`), whose loopback counts their bytes and nobody
else's. Two budgets are measured, so that the meeting of the ranks, evaluations and the end of the run cancel out. It
needs root or user namespaces, and no network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs/policy/pusht_state.json"
RANKS, BATCH = 2, 64
SETTINGS = {
    "as it is": (),
    "accumulation of 2": ("data.batch_size=16",),
    '`shard` "optimizer"': ("train.shard=optimizer",),
    '`shard` "model"': ("train.shard=model",),
    "AdamW": ('train.optimizer={"type": "adamw"}',),
    'AdamW, `shard` "optimizer"': ('train.optimizer={"type": "adamw"}', "train.shard=optimizer"),
    'AdamW, `shard` "model"': ('train.optimizer={"type": "adamw"}', "train.shard=model"),
}
"""Changes of the main job, by what the table calls them."""

_PROGRAM = "ip link set lo up && {run} >&2 && cat /proc/net/dev"


@dataclass(frozen=True)
class Traffic:
    """Bytes that all ranks send in a step.

    Attributes:
        weights: of the model.
    """

    per_step: float
    weights: int
    ranks: int = RANKS

    @property
    def share(self) -> float:
        """Of a ring that sums the gradients in float32: each rank sends 2 (n - 1) / n of them."""
        return self.per_step / (4 * self.weights * 2 * (self.ranks - 1))


def sent_bytes(table: str) -> int:
    """Bytes that the loopback of `/proc/net/dev` has sent."""
    [line] = [line for line in table.splitlines() if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[8])


def sent_by_run(directory: Path, steps: int, changes: tuple[str, ...]) -> int:
    """Train for these steps in a network of its own; returns the bytes that were sent there."""
    settings = [f"train.samples={steps * BATCH}", f"data.global_batch_size={BATCH}", f"tracker.data_path={directory}"]
    settings += ["evaluate=[]", "test=[]", 'tracker.log=[{"type": "console"}]', "tracker.report=false", *changes]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    words += ["-m", "dp_prior", "train", str(CONFIG), *(f"--set={setting}" for setting in settings)]
    run = " ".join(f"'{word}'" for word in words)
    command = ["unshare", "--net", *(["--map-root-user"] if os.getuid() else []), "sh", "-c", _PROGRAM.format(run=run)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"the run ended with {done.returncode}: {done.stderr[-2000:]}")
    return sent_bytes(done.stdout)


def measure(changes: tuple[str, ...], steps: tuple[int, int]) -> Traffic:
    """The bytes of a step, from runs of two lengths."""
    from dp_prior import load_policy

    few, many = steps
    with TemporaryDirectory() as folder:
        sent = [sent_by_run(Path(folder) / str(number), number, changes) for number in steps]
        weights = sum(weight.numel() for weight in load_policy(Path(folder) / str(few)).parameters())
    return Traffic((sent[1] - sent[0]) / (many - few), weights)


def table(rows: dict[str, Traffic]) -> str:
    """Markdown of a line for each setting."""
    lines = ["| main job on 2 ranks | MB a step, both ranks | of gradients summed in a ring |", "|---|---|---|"]
    lines += [f"| {name} | {row.per_step / 1e6:.2f} | {row.share:.2f} |" for name, row in rows.items()]
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--steps", nargs=2, type=click.IntRange(min=1), default=(20, 60), show_default=True)
def main(steps: tuple[int, int]) -> None:
    rows = {name: measure(changes, steps) for name, changes in SETTINGS.items()}
    weights = next(iter(rows.values())).weights
    click.echo(f"{weights:,} weights, {4 * weights / 1e6:.2f} MB in float32\n\n{table(rows)}")


if __name__ == "__main__":
    main()
