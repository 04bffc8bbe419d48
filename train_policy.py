"""Train a policy from one JSON file: `accelerate launch train_policy.py --config_file cfg.json`, or plain python."""

from dp_prior.cli import train

if __name__ == "__main__":
    train()
