"""Checkpoints that survive kill -9, power cuts and full disks: writing, verification, retention and repair."""
