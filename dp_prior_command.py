"""The command `dp-prior`. Outside the package, so that Ctrl-C while that is imported ends without a traceback."""

import signal


def main() -> None:
    """Run the command that the arguments name."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dp_prior.cli import main as run_command

    signal.signal(signal.SIGINT, handler)
    run_command()
