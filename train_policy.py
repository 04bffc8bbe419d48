"""Train a policy from one JSON file: `accelerate launch train_policy.py --config_file cfg.json`, or plain python."""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends without a traceback while torch is imported

from dp_prior.cli import train

if __name__ == "__main__":
    train()
