"""InstalledCommands: the commands of this package and of others, imported when they are called or listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from dp_prior.cli.command import SECTIONS, Commands, exit_codes, unlisted
from dp_prior.files.entry_points import entry_points, imported, loaded, missing_plugins


class InstalledCommands(Commands):
    """Commands of this package and of others: entry points of the group `dp_prior.commands` add commands.

    The module of a command is imported when the command is called or listed.
    """

    def __init__(self, *names: Any, places: Mapping[str, str], hidden_places: Mapping[str, str], **settings: Any):
        """
        Args:
            places: commands of this package by name, as `module:command`.
            hidden_places: commands that the help does not list, as `module:command` or, in a group, as `group command`.
        """
        super().__init__(*names, **settings)
        self._places, self._hidden_places = places, hidden_places

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*self._places, *self._hidden_places, *(entry.name for entry in entry_points("commands"))})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        with exit_codes():
            if name in self._places:
                return imported(self._places[name])
            if name in self._hidden_places:
                place = self._hidden_places[name]
                group, _, inner = place.partition(" ")
                command = self.get_command(context, group).get_command(context, inner) if inner else imported(place)
                return unlisted(command)
            for entry in entry_points("commands", name=name):
                return loaded(entry)
        if remedy := missing_plugins():
            raise click.UsageError(f"there is no command {name!r}. {remedy}")
        self.commands = dict.fromkeys(self.list_commands(context))  # names that click suggests
        return None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, each with the first sentence of its help."""
        names = [name for name in self.list_commands(context) if name not in self._hidden_places]
        commands = {name: self.get_command(context, name) for name in names}
        for section in SECTIONS:
            listed = {name: command for name, command in commands.items() if not command.hidden}
            members = [name for name, command in listed.items() if getattr(command, "section", SECTIONS[-1]) == section]
            if members:
                with formatter.section(section):
                    formatter.write_dl([(name, listed[name].get_short_help_str(limit=1000)) for name in members])
