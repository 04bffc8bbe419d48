"""Converts policies trained by other libraries: LeRobot's and Diffusion Policy's (real-stanford).

The files are treated as hostile input: records validate JSON, the strict reader of checkpoints reads tensors, and no
file can name code to run. Features without a counterpart here are refused by name.
"""
