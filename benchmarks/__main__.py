"""`python -m benchmarks [--quick] [SUBJECT ...]`: measure and report."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from pathlib import Path

import click
import torch
from rich.console import Console

from benchmarks import report
from benchmarks.measure import Case, Options
from benchmarks.results_file import ResultsFile
from benchmarks.subjects import SUBJECTS


@click.command(help="Measure dp_prior beside a baseline of public libraries.")
@click.argument("subjects", nargs=-1, type=click.Choice(SUBJECTS))
@click.option("--quick", is_flag=True, help="A small network and two repeats: does everything still run?")
@click.option("--repeats", type=int, help="Repeats of every measurement; else what each subject deserves.")
@click.option("--threads", type=int, help="torch threads; else torch's own choice.")
@click.option("--widths", default="256,512,1024", help="Channels of the UNet's levels; the paper's are 256,512,1024.")
@click.option("--image-batch", default=64, help="Batch of the image policy; the published one is 64.")
@click.option("--unet2d-batch", default=8, help="Batch of the network of CIFAR-10; the published one is 128.")
@click.option("--output", type=Path, default=Path("runs/benchmarks.json"), help="Where the JSON goes.")
@click.option("--section", help="Replace this section of docs/benchmarks.md, and its record beside it.")
def main(
    subjects: tuple[str, ...],
    quick: bool,
    repeats: int | None,
    threads: int | None,
    widths: str,
    image_batch: int,
    unet2d_batch: int,
    output: Path,
    section: str | None,
) -> None:
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # the baseline is one for the CPU
    if threads:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for the processes that some subjects start
    options = Options(quick, repeats, tuple(map(int, widths.split(","))), 256, image_batch, unet2d_batch)
    if quick:
        options = Options(quick, repeats, (16, 32), 32)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    output.parent.mkdir(parents=True, exist_ok=True)
    measured_before = output.with_suffix(".unfinished.jsonl")
    settings = {"quick": quick, "repeats": repeats, "threads": threads, "widths": widths}
    store = ResultsFile(measured_before, **settings, image_batch=image_batch, unet2d_batch=unet2d_batch)
    results = {name: _measured(name, options, store, console) for name in subjects or SUBJECTS}
    about = report.machine()
    report.show(results, about, console)
    measured = report.document(results, about, shlex.join(sys.argv[1:]))
    output.write_text(json.dumps(measured, indent=1) + "\n")
    measured_before.unlink()
    if section is not None:
        report.keep(section, measured)
    console.print(f"written to {output}")


def _measured(name: str, options: Options, store: ResultsFile, console: Console) -> list[Case]:
    """The cases of a subject; those that an interrupted call has measured are read."""
    subject, cases = importlib.import_module(f"benchmarks.subjects.{name}"), []
    parts = subject.parts(options) if hasattr(subject, "parts") else {"": lambda: subject.run(options)}
    for part, measure in parts.items():
        title = f"{name}: {part}" if part else name
        if title in store.results:
            console.print(f"{title} was measured by a call that has not ended", style="dim")
        else:
            console.print(f"measuring {title} ...", style="dim")
            store.store(title, list(map(report.case_record, measure())))
            if len(parts) > 1:
                report.show_cases(list(map(report.case_of, store.results[title])), console)
        cases += map(report.case_of, store.results[title])
    return cases


if __name__ == "__main__":
    main()
