"""Recorded demonstrations: which values and frames of the episodes are read, and the windows over them."""
