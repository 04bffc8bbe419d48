"""Checkpoints that survive kill -9, power cuts and full disks, and the bookkeeping around them."""
