"""Documents and readers that several tests of checkpoints share."""

from dp_prior.checkpoints.format import read_checkpoint


def progress_of(step):
    """A `progress.json` as training writes it."""
    best = {"metric": "loss", "mode": "min", "value": None, "step": None}
    clock = {"samples_seen": 10 * step, "global_step": step}
    return {**clock, "best": best, "metrics": {}, "scaler": None, "global_batch_size": 10}


def recover(store):
    """The newest good checkpoint and its content, as a restart reads them; None if the run has none."""
    path = store.latest()
    return None if path is None else (path, read_checkpoint(path))
