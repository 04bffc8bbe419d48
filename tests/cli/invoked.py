"""A command as a user gives it."""

from click.testing import CliRunner

from dp_prior.cli import main


def command(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
