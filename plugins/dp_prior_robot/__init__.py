"""From a policy to a robot: exports, the policy server, and ROS 2 bags."""
