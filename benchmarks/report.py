"""Results as a table to read, JSON to keep, and a section of docs/benchmarks.md."""

from __future__ import annotations

import itertools
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Case, Timing, compare, cpu_seconds
from dp_prior.networks.kernels.products import product

PAGE = Path("docs/benchmarks.md")


def machine() -> dict[str, Any]:
    """Describe this machine: processor, versions, and the speed of arithmetic and memory, measured now."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    half_a, half_b = a.bfloat16(), b.bfloat16()
    source, target = torch.zeros(64_000_000), torch.zeros(64_000_000)
    timings = compare(
        {
            "fp32": lambda: product(a, b),
            "bf16": lambda: product(half_a, half_b),
            "copy": lambda: target.copy_(source),
        },
        9,
        scale=1.0,
        clock=cpu_seconds if torch.get_num_threads() == 1 else None,
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "fp32_gflops": round(2 * 1024**3 / timings["fp32"].median / 1e9),
        "bf16_gflops": round(2 * 1024**3 / timings["bf16"].median / 1e9),
        "copy_gb_per_s": round(2 * source.nbytes / timings["copy"].median / 1e9, 1),
        "heap_kept": "MALLOC_MMAP_THRESHOLD_" in os.environ,
    }


def processor() -> str:
    """Name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def show(results: dict[str, list[Case]], about: dict[str, Any], console: Console) -> None:
    """Medians with quartiles, and how many times better each variant is than the first of its case."""
    console.print(_summary(about))
    show_cases([*itertools.chain(*results.values())], console)


def show_cases(cases: Sequence[Case], console: Console) -> None:
    """A table of cases, and their notes."""
    table = Table("what", "variant", "median", "quartiles", "unit", "times better")
    for case in cases:
        for index, (name, timing) in enumerate(case.variants.items()):
            low, high = timing.quartiles
            table.add_row(
                case.name if index == 0 else "",
                name,
                _number(timing.median),
                f"{_number(low)} .. {_number(high)}",
                case.unit,
                f"{case.ratio(name):.2f}" if index else "",
            )
        table.add_section()
    console.print(table)
    for case in cases:
        if case.note:
            console.print(f"{case.name}: {case.note}", style="dim")


def document(results: dict[str, list[Case]], about: dict[str, Any], command: str) -> dict[str, Any]:
    """All measurements as JSON, including single repeats.

    Args:
        command: the arguments of the call that measured it.
    """

    subjects = {subject: list(map(case_record, cases)) for subject, cases in results.items()}
    return {"command": command, "machine": about, "subjects": subjects}


def case_record(case: Case) -> dict[str, Any]:
    """A case as JSON keeps it."""
    variants = {}
    for name, timing in case.variants.items():
        variants[name] = {"median": timing.median, "quartiles": timing.quartiles, "values": timing.values}
    return {
        "name": case.name,
        "unit": case.unit,
        "more_is_better": case.more_is_better,
        "note": case.note,
        "variants": variants,
        "times_better": {name: case.ratio(name) for name in list(case.variants)[1:]},
    }


def case_of(record: Mapping[str, Any]) -> Case:
    """The case of a record with single repeats."""
    variants = {name: Timing(timing["values"]) for name, timing in record["variants"].items()}
    return Case(record["name"], record["unit"], variants, record["more_is_better"], record["note"])


def keep(section: str, measured: dict[str, Any], page: Path = PAGE) -> None:
    """Replace a section of the page and its record, without single repeats, in the `.json` beside the page."""
    path = page.with_suffix(".json")
    records = json.loads(path.read_text(encoding="utf-8"))
    records[section] = json.loads(json.dumps(measured))
    for case in itertools.chain(*records[section]["subjects"].values()):
        for timing in case["variants"].values():
            del timing["values"]
    path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    page.write_text(markdown(records), encoding="utf-8")


def markdown(records: dict[str, Any]) -> str:
    """The page of all records, a section each."""
    lines = [
        "# Benchmarks",
        "",
        "Speed and memory beside plain public libraries. Each section and its record in `docs/benchmarks.json` are "
        "written by the command it names; do not edit. Where nothing else is named, the baseline is "
        "`benchmarks/baseline.py`: the same network as plain `nn.Conv1d`, the schedulers and the EMA of diffusers, a "
        "`Dataset` of single windows, default AdamW and `torch.save`. The variants of a row were measured in turns, "
        "unless its note says otherwise; times better is against the first of them. Compare ratios, not milliseconds, "
        "between machines.",
    ]
    for section, record in records.items():
        cases = list(itertools.chain(*record["subjects"].values()))
        lines += ["", f"## {section}", "", f"`python -m benchmarks {record['command']}`", ""]
        lines += [f"{_summary(record['machine'])}. {record['machine']['date']}.", ""]
        lines += ["| What | Variant | Median | Quartiles | Unit | Times better |", "|---|---|---:|---:|---|---:|"]
        for case in cases:
            lines += _rows(case)
        lines += ["", *(f"- {case['name']}: {case['note']}" for case in cases if case["note"])]
    return "\n".join(lines).rstrip() + "\n"


def _rows(case: dict[str, Any]) -> Iterator[str]:
    for index, (name, timing) in enumerate(case["variants"].items()):
        low, high = map(_number, timing["quartiles"])
        title, ratio = ("", f"{case['times_better'][name]:.2f}") if index else (case["name"], "")
        yield f"| {title} | {name} | {_number(timing['median'])} | {low} .. {high} | {case['unit']} | {ratio} |"


def _summary(about: dict[str, Any]) -> str:
    return (
        f"{about['processor']}, {about['threads']} threads, torch {about['torch']}; "
        f"{about['fp32_gflops']} GFLOP/s fp32, {about['bf16_gflops']} bf16, copy {about['copy_gb_per_s']} GB/s; "
        f"heap {'kept' if about['heap_kept'] else 'as glibc has it'}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(markdown(json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))), encoding="utf-8")
