"""`dp-prior configs`: the configurations that come with the package, and the JSON Schema of all configurations."""

from __future__ import annotations

import click

from dp_prior.cli.command import Command
from dp_prior.cli.options import modules_option
from dp_prior.cli.output import echo


@click.command(cls=Command, example="dp-prior configs --schema > schema.json")
@modules_option
@click.option("--schema", "shows_schema", is_flag=True, help="Print the JSON Schema of a configuration, for editors.")
def configs(shows_schema: bool) -> None:
    """List the configurations that come with the package, each with its file; `train` takes their names."""
    from dp_prior.run.configurations import configurations

    if shows_schema:
        _print_schema()
        return
    for name, path in configurations().items():
        echo(f"{name:<24} {path}")


@click.command(cls=Command)
@modules_option
def schema() -> None:
    """Print the JSON Schema of a configuration, with the parts of imported and installed packages, for editors."""
    _print_schema()


def _print_schema() -> None:
    import json

    from dp_prior.config.schema import json_schema
    from dp_prior.run.config import TrainConfig

    echo(json.dumps(json_schema(TrainConfig), indent=2), whole=True)
