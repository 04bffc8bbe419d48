"""The client of `dp-prior serve`, for the computer on the robot: numpy, websockets and msgpack, Python 3.8 or later.

It imports nothing else of dp_prior: without the package, copy this folder to `dp_prior/client` beside your program.
"""

from dp_prior.client.client import PolicyClient, ServerError

__all__ = ["PolicyClient", "ServerError"]
