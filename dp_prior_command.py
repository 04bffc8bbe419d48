"""The command `dp-prior`. Outside the package, since importing that imports torch, which takes seconds."""

import signal


def main() -> None:
    """Run the command that the arguments name; Ctrl-C while torch is imported ends it without a traceback."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dp_prior.cli import main as run_command

    signal.signal(signal.SIGINT, handler)
    run_command()
