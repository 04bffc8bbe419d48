"""A scripted expert for Push-T: at every step it simulates pushes on the block's outline and follows the best one.

It is a function of the state alone (no memory), so a policy that sees the state can imitate it. The world has no friction and no
inertia, so a push is pure geometry and needs no physics engine. Lengths in px, y down, angles in rad, time in control steps of 0.1 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

GOAL_POSE = np.array([256.0, 256.0, np.pi / 4])  # block x, y, angle; gym-pusht
AGENT_RADIUS = 15.0
WORLD_MIN, WORLD_MAX = 7.0, 504.0  # inner faces of the walls

# The block in its own frame, as gym-pusht builds it: two boxes, bar and stem. It turns about the centre of gravity.
BOX_CENTRES = np.array([[0.0, 15.0], [0.0, 75.0]])
BOX_HALF_SIZES = np.array([[60.0, 15.0], [15.0, 45.0]])
OUTLINE = np.array([[-60.0, 0], [60, 0], [60, 30], [15, 30], [15, 120], [-15, 120], [-15, 30], [-60, 30]])
CENTRE_OF_GRAVITY = np.array([0.0, 45.0])
INERTIA_PER_MASS = 3000.0  # px^2


def rotation(angle: np.ndarray) -> np.ndarray:
    """(...) angles to (..., 2, 2) matrices from the block's frame to the world."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)


def to_world(points: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Points (..., N, 2) of the block's frame, for block poses (..., 3), in the world."""
    return points @ np.swapaxes(rotation(pose[..., 2]), -1, -2) + pose[..., None, :2]


def to_block(points: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """World points (..., N, 2), for block poses (..., 3), in the block's frame."""
    return (points - pose[..., None, :2]) @ rotation(pose[..., 2])


def distance_to_block(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signed distance (...) of points (..., 2) in the block's frame to its outline, and the outward normal (..., 2) there."""
    offset = points[..., None, :] - BOX_CENTRES  # (..., 2 boxes, 2)
    excess = np.abs(offset) - BOX_HALF_SIZES
    outside = np.maximum(excess, 0.0)
    outside_length = np.sqrt(np.sum(outside**2, -1))
    inside = np.max(excess, -1)
    distance = np.where(inside > 0, outside_length, inside)  # (..., 2 boxes)
    nearest = np.argmin(distance, -1)[..., None]
    pick = lambda values: np.take_along_axis(values, nearest[..., None], -2)[..., 0, :]
    offset, excess, outside = pick(offset), pick(excess), pick(outside)
    distance = np.take_along_axis(distance, nearest, -1)[..., 0]
    axis = np.eye(2)[np.argmax(excess, -1)]
    normal = np.where(distance[..., None] > 0, outside / np.maximum(distance, 1e-9)[..., None], axis)
    return distance, normal * np.where(offset < 0, -1.0, 1.0)


def push(agent: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Poses (K, 3) of a block at (K, 3) after agents at (K, 2) have pushed it out of themselves.

    A frictionless contact acts along its normal n at arm a about the centre of gravity, so that one unit of impulse moves the contact
    by 1 / m + a^2 / I along n; the block gets just the impulse that ends the overlap.
    """
    turn = rotation(pose[:, 2])
    local = to_block(agent[:, None], pose)[:, 0]
    distance, normal = distance_to_block(local)
    lever = local - normal * distance[:, None] - CENTRE_OF_GRAVITY
    arm = lever[:, 0] * normal[:, 1] - lever[:, 1] * normal[:, 0]
    impulse = np.maximum(AGENT_RADIUS - distance, 0.0) / (1.0 + arm**2 / INERTIA_PER_MASS)
    centre = pose[:, :2] + (turn @ CENTRE_OF_GRAVITY) - (turn @ normal[:, :, None])[:, :, 0] * impulse[:, None]
    angle = pose[:, 2] - arm * impulse / INERTIA_PER_MASS
    return np.concatenate([centre - rotation(angle) @ CENTRE_OF_GRAVITY, angle[:, None]], -1)


def goal_error(pose: np.ndarray) -> np.ndarray:
    """Mean distance (...) in px of the outline's corners at poses (..., 3) to where they belong at the goal."""
    return np.mean(np.linalg.norm(to_world(OUTLINE, pose) - to_world(OUTLINE, GOAL_POSE), axis=-1), -1)


def outline_points(spacing: float) -> tuple[np.ndarray, np.ndarray]:
    """Points (N, 2) along the outline about `spacing` px apart, corners left out, and their outward normals (N, 2)."""
    points, normals = [], []
    for start, stop in zip(OUTLINE, np.roll(OUTLINE, -1, 0)):
        count = int(np.ceil(np.linalg.norm(stop - start) / spacing))
        along = (np.arange(count) + 0.5)[:, None] / count
        points.append(start + along * (stop - start))
        dx, dy = (stop - start) / np.linalg.norm(stop - start)
        normals.append(np.tile([dy, -dx], (count, 1)))
    return np.concatenate(points), np.concatenate(normals)


@dataclass(frozen=True)
class PushTExpert:
    """Chooses the push whose travel, push and estimated remaining time add up to the least, and steers towards it."""

    spacing: float = 7.5  # px between candidate contacts on the outline
    clearance: float = 10.0  # px between agent and block where a push begins
    margin: float = 2.0  # px kept from the block on the way
    travel_lead: float = 44.0  # px the target is ahead of the agent on the way; it moves half of that per step
    push_lead: float = 24.0  # px the target is ahead of the agent while pushing
    push_overhead: float = 4.0  # steps to begin another push
    halving: float = 10.0  # steps it takes, all in all, to halve the goal error
    pace: float = 0.2  # steps per px of goal error, besides
    solved_error: float = 1.2  # px of goal error that are good enough

    def __post_init__(self) -> None:
        contacts, normals = outline_points(self.spacing)
        nodes = contacts + normals * (AGENT_RADIUS + self.clearance)
        free = distance_to_block(nodes)[0] >= AGENT_RADIUS + self.margin / 2
        corner = OUTLINE[[0, 1, 2, 4, 5, 7]]
        outward = np.array([[-1, -1], [1, -1], [1, 1], [1, 1], [-1, 1], [-1, 1]]) / np.sqrt(2)
        nodes = np.concatenate([nodes[free], corner + outward * (AGENT_RADIUS + self.clearance)])
        object.__setattr__(self, "_nodes", nodes)  # (N, 2) block frame
        object.__setattr__(self, "_directions", -normals[free])  # (M, 2) block frame
        lengths = np.linalg.norm(nodes[:, None] - nodes, axis=-1)
        object.__setattr__(self, "_edges", np.where(self._visible(nodes[:, None], nodes[None]), lengths, np.inf))
        step = np.minimum(1.0 + 0.15 * np.arange(45), 6.0)
        object.__setattr__(self, "_push_steps", step)

    def _visible(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Whether the agent can go straight from (..., 2) to (..., 2), in the block's frame, without touching the block."""
        along = np.linspace(0.0, 1.0, 24)[:, None]
        points = start[..., None, :] * (1 - along) + stop[..., None, :] * along
        distance = distance_to_block(points)[0]
        enough = np.minimum(AGENT_RADIUS + self.margin / 2, distance[..., :1] + 1e-6)  # leaving a contact is no touching
        return np.all((distance >= enough) , -1)

    def _plan_pushes(self, starts, directions, pose):
        """For K straight pushes the least remaining time (K,) and the length (K,) of agent travel that achieves it."""
        agent, poses = starts.copy(), np.tile(pose, (len(starts), 1))
        outside0, error0 = self._outside(poses), goal_error(pose)
        best = np.full(len(starts), np.inf)
        best_length = np.zeros(len(starts))
        length = 0.0
        for step in self._push_steps:
            agent = agent + directions * step
            length += step
            poses = push(agent, poses)
            error = goal_error(poses)
            cost = length / (self.push_lead / 2) + self.remaining_time(error)
            bad = (self._outside(poses) > outside0 + 0.1) | np.any((agent < 1.0) | (agent > 511.0), -1)
            cost = np.where(bad | (error > 0.95 * error0), np.inf, cost)
            better = cost < best
            best, best_length = np.where(better, cost, best), np.where(better, length, best_length)
        return best, best_length

    def _outside(self, poses):
        corners = to_world(OUTLINE, poses)
        return np.max(np.maximum(WORLD_MIN - corners, corners - WORLD_MAX), (-2, -1)).clip(0)

    def remaining_time(self, error):
        return self.halving * np.log2(np.maximum(error, self.solved_error) / self.solved_error) + self.pace * error

    def act(self, state: np.ndarray) -> np.ndarray:
        """Target position (2,) in px for a state (5,): agent x, y, block x, y, angle."""
        agent, pose = state[:2].astype(float), state[2:].astype(float)
        local_agent = to_block(agent[None], pose)[0]
        turn = rotation(pose[2])
        nodes = to_world(self._nodes, pose)
        reachable = np.all((nodes > 1.0) & (nodes < 511.0), -1)

        # Shortest ways from every node to every node that stay in the world, then from the agent.
        edges = np.where(reachable[:, None] & reachable[None], self._edges, np.inf)
        first = np.linalg.norm(self._nodes - local_agent, axis=-1)
        first = np.where(self._visible(local_agent[None], self._nodes) & reachable, first, np.inf)
        if not np.isfinite(first).any():
            first = np.where(reachable, np.linalg.norm(self._nodes - local_agent, axis=-1), np.inf)
        way, before = first.copy(), np.full(len(nodes), -1)
        for _ in range(8):
            through = way[:, None] + edges
            via = np.argmin(through, 0)
            shorter = through[via, np.arange(len(nodes))] < way - 1e-9
            if not shorter.any():
                break
            way = np.where(shorter, through[via, np.arange(len(nodes))], way)
            before = np.where(shorter, via, before)

        contacts = len(self._directions)
        starts, directions = nodes[:contacts], self._directions @ turn.T
        travel = way[:contacts] / (self.travel_lead / 2) + self.push_overhead

        distance, normal = distance_to_block(local_agent)
        touching = distance < AGENT_RADIUS + self.clearance + 4.0
        if touching:
            tilt = np.deg2rad([0.0, -12, 12, -24, 24])
            here = (rotation(tilt) @ -(turn @ normal))
            starts = np.concatenate([starts, np.tile(agent, (len(tilt), 1))])
            directions = np.concatenate([directions, here])
            travel = np.concatenate([travel, np.abs(tilt)])
        ok = np.isfinite(travel)
        cost = np.full(len(travel), np.inf)
        length = np.zeros(len(travel))
        cost[ok], length[ok] = self._plan_pushes(starts[ok], directions[ok], pose)
        total = cost + travel
        best = int(np.argmin(total))
        if best >= contacts:
            target = agent + directions[best] * min(self.push_lead, length[best])
        else:
            chain = [best]
            while before[chain[-1]] >= 0:
                chain.append(before[chain[-1]])
            target = self._along(agent, nodes[chain[::-1]], pose)
        return np.clip(target, 0.0, 512.0)

    def _along(self, agent, waypoints, pose):
        """The farthest point of the way that is at most `travel_lead` away along it and in straight reach."""
        left, here, target = self.travel_lead, agent, waypoints[0]
        points = []
        for w in waypoints:
            d = np.linalg.norm(w - here)
            n = max(int(d // 4), 1)
            for k in range(1, n + 1):
                if left - d * k / n < 0:
                    break
                points.append(here + (w - here) * k / n)
            left -= d
            here = w
            if left <= 0:
                break
        if not points:
            return agent + (waypoints[0] - agent) * min(1.0, self.travel_lead / max(np.linalg.norm(waypoints[0] - agent), 1e-6))
        local = to_block(np.array(points), pose)
        ok = self._visible(to_block(agent[None], pose), local)
        good = np.flatnonzero(ok)
        return points[good[-1]] if len(good) else points[0]
