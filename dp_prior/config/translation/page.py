"""The page "Coming from": the tables of all libraries as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dp_prior.config.translation.library import Library
from dp_prior.config.translation.omissions import Omission

_HEAD = """# Coming from another library

Generated from the tables in `dp_prior/config/translation` by `python -m tests.reference`; do not edit.

`dp-prior translate` writes your configuration as one of ours and says what became of each setting:

```bash
dp-prior translate outputs/2023.01.16/.hydra/config.yaml --out mine.json    # YAML or JSON
dp-prior translate flags.txt --out mine.json    # the flags of a command line, in a file
dp-prior translate --image_size 64 --num_channels 128 --learn_sigma True    # or as they are; printed without --out
dp-prior translate config.yaml training.num_epochs=300 --out mine.json    # some settings overridden
dp-prior train --config_file mine.json --check
```

Whose configuration it is, it recognises by its settings; `--from` says it. `FILL_IN` stands for a path or a key that
theirs does not say; the end of the report lists these, and `--check` stops at the first. Values that cannot be
translated are `dropped` with the reason, and settings that the library does not have are `unknown`. No file can run
code: YAML is read without tags, and classes that it names are texts.

In the tables `<average>` is a name in `train.ema`, `<rollout>`, `<validation>` and the like are entries of `evaluate`,
`<wandb>` of `tracker.log`, `<saver>` of `tracker.save`. A `*` stands for any name. Every field is in
[config.md](config.md); trained policies of LeRobot and Diffusion Policy are converted too ([import.md](import.md)).
"""


def page(libraries: Sequence[Library], omissions: Sequence[Omission]) -> str:
    """The page, with a table for each library and a table of the omissions."""
    lines = [_HEAD]
    for library in libraries:
        lines += [*_section(library), ""]
    lines += ["## Left out on purpose", "", "| theirs | of | why, and what to do |", "|---|---|---|"]
    lines += [f"| {_cell(one.feature)} | {_cell(one.whose)} | {_cell(one.reason)} |" for one in omissions]
    return "\n".join(lines) + "\n"


def _section(library: Library) -> Iterator[str]:
    yield f"## {library.name}"
    yield ""
    yield f"[{library.name}]({library.link}), `--from {library.key}`. {library.about}"
    yield ""
    if library.blocks:
        blocks = ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in library.blocks.items())
        yield f"Objects: {blocks}."
        yield ""
    yield "| theirs | here | |"
    yield "|---|---|---|"
    for row in sorted(library.rows, key=lambda row: not row.ours):
        yield f"| `{row.theirs}` | {f'`{row.ours}`' if row.ours else ''} | {_cell(row.remark)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
