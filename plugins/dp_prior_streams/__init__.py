"""Data sets that do not fit this machine: their parts arrive in the order of training, within a budget of disk."""
