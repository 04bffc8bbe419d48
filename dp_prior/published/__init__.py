"""Policies that other libraries trained, converted to ours: LeRobot's and Diffusion Policy's (real-stanford).

Their files are hostile input: JSON is validated by records, tensors are read by the strict reader of checkpoints, and
nothing in a file names code. What has no counterpart here is refused by name.
"""
