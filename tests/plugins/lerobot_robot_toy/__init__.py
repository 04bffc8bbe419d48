"""A robot and a leader arm for LeRobot's programs: the toy of `dp_prior.envs.toy`, perhaps with a camera."""

from lerobot_robot_toy.config_toy import ToyConfig, ToyLeaderConfig
from lerobot_robot_toy.toy import Toy, ToyLeader

__all__ = ["Toy", "ToyConfig", "ToyLeader", "ToyLeaderConfig"]
