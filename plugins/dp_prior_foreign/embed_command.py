"""`dp-prior embed`: embeddings that training reads, written once."""

from __future__ import annotations

from pathlib import Path

import click

from dp_prior.cli.command import ResumableCommand
from dp_prior.cli.options import (
    EXISTING_PATH,
    PATH,
    check_spelling,
    configuration,
    modules_option,
    overrides_option,
    refuse_given,
)
from dp_prior.cli.output import echo


@click.command(cls=ResumableCommand, section="Data", example="dp-prior embed mine.json --model M --key K --out F")
@modules_option
@click.option(
    "--model", required=True, help="A folder or user/name[@revision] of the Hub for transformers; or `hashed`."
)
@click.option("--out", required=True, type=PATH, help="The folder to write.")
@click.option("--texts", type=EXISTING_PATH, help="Texts: lines of a .txt, or .csv, .jsonl, .parquet.")
@click.option("--images", type=EXISTING_PATH, help="Paths of pictures, relative to this file; the same.")
@click.option("--column", help="Column of --texts or --images that holds them; by default text or image.")
@click.option("--tokens", is_flag=True, help="With --texts: an encoding of each token, for data.text_encodings.")
@configuration(is_required=False)
@click.option("--key", help="With CONFIG, whose data are embedded: the name in data.language or data.images.")
@overrides_option
def embed(
    model: str,
    out: Path,
    texts: Path | None,
    images: Path | None,
    column: str | None,
    tokens: bool,
    config_file: Path | None,
    key: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Embed texts, pictures or camera frames once, for training to read (docs/language.md). Stop and repeat it at any
    time."""
    if config_file is not None:
        check_spelling(config_file, overrides)
    from dp_prior_foreign.embed import embed_data, embed_pictures, embed_texts

    if [texts, images, config_file].count(None) != 2 or (config_file is None) != (key is None):
        raise click.UsageError("give --texts, --images, or CONFIG and --key")
    if tokens and texts is None:
        raise click.UsageError("--tokens is for --texts: pictures and frames have no tokens")
    if config_file is None:
        refuse_given(["overrides"], "only for CONFIG; texts and pictures have no settings")
    elif column is not None:
        raise click.UsageError("--column is for --texts and --images; --key names what is embedded of CONFIG")
    if texts is not None:
        is_new = embed_texts(model, out, texts, column or "text", echo, by_token=tokens)
    elif images is not None:
        is_new = embed_pictures(model, out, images, column or "image", echo)
    else:
        is_new = embed_data(model, out, config_file, overrides, key, echo)
    echo(f"wrote {out}" if is_new else f"{out} is complete already")
