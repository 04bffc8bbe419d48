"""The client of `dp-prior serve`, for the computer on the robot: numpy, websockets and msgpack, Python 3.8 or later.

It imports nothing of dp_prior but `dp_prior.onboard`: without the package, copy both folders, see docs/robot.md.
"""

from dp_prior.client.client import PolicyClient, ServerError

__all__ = ["PolicyClient", "ServerError"]
