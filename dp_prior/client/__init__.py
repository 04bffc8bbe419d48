"""The robot's side of a policy server: Python 3.8 and numpy, without torch."""
