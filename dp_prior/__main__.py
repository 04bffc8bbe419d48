"""The command `dp-prior`, also as `python -m dp_prior`, which `accelerate launch -m dp_prior` starts on every rank."""

import gc
import signal


def main() -> None:
    """Run the command that the arguments name; Ctrl-C during the imports ends without a traceback."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # what is imported stays: collections meanwhile free nothing
    from dp_prior.cli import main as run_command

    gc.enable()
    signal.signal(signal.SIGINT, handler)
    run_command()


if __name__ == "__main__":
    main()
