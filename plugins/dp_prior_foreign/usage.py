"""Explains a command line that click refuses: the setting that an option is short for, or what the command expects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from dp_prior.run.configurations import configurations, stored_schema

DEEPEST = 4
"""Most names in the path of a setting that is looked for."""

MOST_SETTINGS = 4
"""Most settings that an answer names."""

DEVICES = ("device", "devices", "gpu", "gpus", "gpu-id", "cuda", "cpu")
"""Options by which other programs choose the device."""


def explained_usage(error: click.UsageError, context: click.Context) -> click.UsageError:
    """Add to the message what the command expects.

    Args:
        context: of the command whose words were refused.
    """
    if isinstance(error, click.NoSuchOption):
        error.possibilities = [name for name in error.possibilities if name != "--help"]
        if any("--set" in option.opts for option in context.command.params) and not error.possibilities:
            error.message += _settings_named(error.option_name.lstrip("-"))
    elif isinstance(error, click.MissingParameter):
        remark = getattr(error.param, "help", None)
        error.message = error.message or f"{remark or ''}"
    elif "unexpected extra argument" in error.message:
        words = error.message.rpartition("(")[2].rstrip(")").split()
        error.message += f". {_arguments(context, words)}"
    return error


def _settings_named(name: str) -> str:
    """The settings whose path has this name at its end, or its last but one, such as `train.lr.peak` for lr.

    The name of a device is answered with the environment variables that choose the device.
    """
    if name.replace("_", "-") in DEVICES:
        return " Before the command, CUDA_VISIBLE_DEVICES=1 chooses a GPU and ACCELERATE_USE_CPU=true the CPU"
    words = name.replace("-", "_").split(".")
    schema = stored_schema()
    paths = [path for path in _paths(schema, schema, ()) if words[-1] in path[-2:]]
    paths.sort(key=lambda path: (path[-1] != words[-1], len(path)))
    names = list(dict.fromkeys(".".join(path) for path in paths))[:MOST_SETTINGS]
    if not names:
        return " A setting has its whole key, --train.batch_size=64 or --set train.batch_size=64 (docs/config.md)"
    return f" A setting has its whole key: {' or '.join(f'--{key}=VALUE' for key in names)} (docs/config.md)"


def _paths(schema: dict[str, Any], node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of all settings outside lists, the shallow ones of an object before those below."""
    for part in _variants(schema, node):
        properties = part.get("properties", {})
        yield from ((*path, name) for name in properties if name != "type")
        if len(path) + 1 < DEEPEST:
            for name, below in properties.items():
                yield from _paths(schema, below, (*path, name))


def _variants(schema: dict[str, Any], node: Any) -> Iterator[dict[str, Any]]:
    """The object that a node of a schema describes, or each of several."""
    if isinstance(node, dict):
        if "$ref" in node:
            node = schema.get("$defs", {}).get(node["$ref"].rpartition("/")[2], {})
        yield node
        for union in ("anyOf", "oneOf", "allOf"):
            for choice in node.get(union, ()):
                yield from _variants(schema, choice)


def _arguments(context: click.Context, words: list[str]) -> str:
    """Say which arguments a command takes, and what to write in place of further words."""
    command = context.command
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    names = " ".join(argument.make_metavar(context).strip("[]") for argument in arguments)
    expected = f"takes {names} and no further argument" if names else "takes no argument"
    options = [param.opts[0] for param in command.params if isinstance(param, click.Option) and not param.hidden]
    advice = f"; its options are {', '.join(options)}" if options else ""
    if "--set" in options:
        advice = "; settings follow as --set KEY=VALUE"
    extra = next((word for word in words if word in configurations()), None) if "--set" not in options else None
    trained = f". `dp-prior train {extra}` trains the configuration of this name" if extra else ""
    return f"{context.command_path} {expected}{advice}{trained}"
