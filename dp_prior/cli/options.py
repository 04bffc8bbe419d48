"""The types of arguments and the options that several commands have, and what they refuse."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from dp_prior.cli.command import IMPORTED, exit_codes
from dp_prior.files.regular_files import expanded


class FiniteRange(click.FloatRange):
    """A number in a range; refuses infinity and NaN."""

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> float:
        number = super().convert(value, param, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, context)
        return number

    def _describe_range(self) -> str:
        """For the help; click writes `x<=None` where there is no limit."""
        return "finite" if self.min is self.max is None else super()._describe_range()


def check_readable(configuration: Path) -> None:
    """Raises ConfigError if a configuration is missing or no JSON; does not load torch, which takes seconds."""
    from dp_prior.config.read import files_of
    from dp_prior.run.configurations import find_configuration

    files_of(find_configuration(configuration))


def check_spelling(configuration: Path, overrides: Sequence[str]) -> None:
    """Raises ConfigError for misspelt keys, and values that are no number where only a number fits, by the stored
    schema, without torch, whose import takes seconds.

    Everything else is left to the records: keys that resemble none, other values, parts of other packages and of
    modules that the command has imported.
    """
    from dp_prior.config import ConfigError
    from dp_prior.config.read import Layers, files_of, unknown_keys
    from dp_prior.files.entry_points import ask
    from dp_prior.run.configurations import find_configuration, stored_schema

    context = click.get_current_context(silent=True)
    has_imported = context is not None and context.meta.get(IMPORTED)
    if has_imported or any("=" not in override for override in overrides):
        return
    schema = stored_schema()
    (base, document), *upper_files = reversed(files_of(find_configuration(configuration)))
    layers = Layers(document, str(base))
    for file, upper in upper_files:
        layers.lay(upper, str(file))
    unknown, documents = [*unknown_keys(layers.data, [schema], schema)], [layers.data]
    for override in overrides:
        path, _, text = override.partition("=")
        keys = tuple(path.split("."))
        documents.append(functools.reduce(lambda inner, key: {key: inner}, reversed(keys), _value(text)))
        replaced = keys[:-1] if keys[-1] == "type" else keys  # another type resets the object
        unknown = [key for key in unknown if key[0][: len(replaced)] != replaced]
        unknown += [key for key in unknown_keys(documents[-1], [schema], schema) if len(key[0]) <= len(keys)]
    if unknown and (problems := ask("misspelt", layers, unknown, documents)):
        raise ConfigError(layers.top, problems)


def _value(text: str) -> object:
    """The value of an override as JSON, or as text."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


class LocalPath(click.Path):
    """A path on this machine, with `~` replaced, which no shell replaces in `--out=~/x`; refuses a URL, of which a path
    would make a folder named `s3:` here."""

    def __init__(self, **options: bool):
        super().__init__(path_type=Path, **options)

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> Path:
        if "://" in str(value):
            self.fail(f"{value} is a URL; expected a path on this machine", param, context)
        return super().convert(expanded(value), param, context)


class ConfigurationFile(LocalPath):
    """A JSON file that can be read, or a name that `dp-prior configs` lists."""

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> Path:
        path = super().convert(value, param, context)
        if context is None or not context.resilient_parsing:  # completion tells no errors
            with exit_codes():
                check_readable(path)
        return path


def configuration(is_required: bool = True) -> Callable[[Callable], Callable]:
    """The argument CONFIG, which may stand behind `--config_file` too; the command gets it as `config_file`."""

    def chosen(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        paths = [file for file in (context.params.pop("config"), path) if file is not None]
        if len(paths) not in (1, is_required):
            raise click.UsageError("name one CONFIG: a JSON file, or a name that `dp-prior configs` lists")
        return paths[0] if paths else None

    argument = click.argument("config", type=ConfigurationFile(), required=False, is_eager=True)
    option = click.option("--config_file", type=ConfigurationFile(), callback=chosen, help="The same as CONFIG.")
    return lambda command: argument(option(command))


def _modules_option(name: str) -> Callable[[Callable], Callable]:
    words = "Import a module with parts of your own first (docs/extending.md); repeatable."
    return click.option("--import", name, multiple=True, envvar="DP_PRIOR_IMPORT", metavar="MODULE", help=words)


modules_option = _modules_option("imported")
late_modules_option = _modules_option("modules")
"""For a command that imports the modules later, under its signal handler, or passes the names on."""

PATH = LocalPath()
EXISTING_PATH = LocalPath(exists=True)

overrides_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable."
)


def refuse_given(names: Iterable[str], why: str) -> None:
    """Raises UsageError if the user gave any of these parameters of the command, which have no effect here."""
    context = click.get_current_context()
    asked = {name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    used = [param.opts[0] for param in context.command.params if param.name in asked]
    if used:
        raise click.UsageError(f"{', '.join(used)}: {why}")
