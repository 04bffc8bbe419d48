"""A scripted expert for Push-T: at every step it simulates pushes all around the block and executes the best one.

It is a pure function of the state, so that a policy which sees the state can imitate it. Points and vectors are complex
numbers x + iy in px (y down); multiplying by a unit number `turn` rotates them. Times are in control steps of 0.1 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

AGENT_RADIUS = 15.0
WALLS = 7.0, 504.0  # what the block can reach, in x and in y
REACH = 1.0, 511.0  # where an agent can be sent, in x and in y; walls do not stop it

# The block as gym-pusht builds it, bar and stem, in its own frame. Here the frame's origin is the centre of gravity,
# about which the block turns, and not the middle of the bar's outer edge, by which gym-pusht states its position.
POSITION = -45j
BOXES = ((-30j, 60.0, 15.0), (30j, 15.0, 45.0))  # centre, half width, half height
OUTLINE = POSITION + np.array([-60, 60, 60 + 30j, 15 + 30j, 15 + 120j, -15 + 120j, -15 + 30j, -60 + 30j])
CORNERS = OUTLINE[[0, 1, 2, 4, 5, 7]]  # the convex ones
CORNER_NORMALS = np.array([-1 - 1j, 1 - 1j, 1 + 1j, 1 + 1j, -1 + 1j, -1 + 1j]) / np.sqrt(2)
INERTIA = 3000.0  # px^2, for a mass of 1
GOAL_TURN = np.exp(0.25j * np.pi)
GOAL_OUTLINE = (256 + 256j) + GOAL_TURN * (OUTLINE - POSITION)


def distance_to_block(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances (...) of points (...) in the block's frame to the block, negative inside, and unit normals (...)."""
    distance, normal = np.full(points.shape, np.inf), np.zeros(points.shape, complex)
    for centre, half_width, half_height in BOXES:
        offset = points - centre
        over_x, over_y = np.abs(offset.real) - half_width, np.abs(offset.imag) - half_height
        beyond = np.maximum(over_x, 0) + 1j * np.maximum(over_y, 0)
        outside = np.abs(beyond)
        depth = np.maximum(over_x, over_y)
        away = np.where(depth > 0, beyond / np.maximum(outside, 1e-9), np.where(over_x > over_y, 1, 1j))
        away = np.copysign(away.real, offset.real) + 1j * np.copysign(away.imag, offset.imag)
        box_distance = np.where(depth > 0, outside, depth)
        normal = np.where(box_distance < distance, away, normal)
        distance = np.minimum(box_distance, distance)
    return distance, normal


def push_out(agent: np.ndarray, centre: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centres of gravity and turns (K,) of blocks after agents at (K,) have pushed them just out of themselves.

    Push-T has neither friction nor momentum. A unit impulse along the contact's normal, at arm a about the centre of
    gravity, moves the block by 1 and turns it by a / I, which moves the contact by 1 + a^2 / I along the normal.
    """
    place = (agent - centre) * turn.conj()
    distance, normal = distance_to_block(place)
    arm = ((place - distance * normal).conj() * normal).imag
    impulse = np.maximum(AGENT_RADIUS - distance, 0.0) / (1.0 + arm**2 / INERTIA)
    return centre - impulse * turn * normal, turn * np.exp(-1j * arm * impulse / INERTIA)


def goal_error(outline: np.ndarray) -> np.ndarray:
    """Mean distance (...) in px between the corners (..., 8) of a block and those of the goal."""
    return np.mean(np.abs(outline - GOAL_OUTLINE), -1)


def outside(points: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """By how much points (...) exceed the limits in x or in y; 0 inside."""
    low, high = limits
    x, y = points.real, points.imag
    return np.maximum.reduce([low - x, x - high, low - y, y - high, np.zeros(points.shape)])


def shortest_ways(first: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shortest paths from a source to N nodes of a graph (Bellman-Ford).

    Args:
        first: (N,) lengths of the edges from the source, inf where there is none.
        edges: (N, N) lengths between nodes, inf where there is none.

    Returns:
        (N,) lengths, inf where unreachable, and (N,) the predecessor of each node, -1 for the source.
    """
    length, before = first.copy(), np.full(len(first), -1)
    for _ in first:
        through = length[:, None] + edges
        via = np.argmin(through, 0)
        candidate = through[via, np.arange(len(first))]
        shorter = candidate < length - 1e-6
        if not shorter.any():
            break
        length, before = np.where(shorter, candidate, length), np.where(shorter, via, before)
    return length, before


@dataclass(frozen=True)
class PushTExpert:
    """Chooses the push with the lowest sum of path, push and estimated time to finish, and steers towards it."""

    spacing: float = 7.5  # px between the contacts considered on the outline
    clearance: float = 15.0  # px between agent and block where a push begins
    arrival: float = 10.0  # px from there at which the agent turns into the push
    tilts: tuple[float, ...] = (0.0, -8.0, 8.0, -16.0, 16.0, -24.0, 24.0, -32.0, 32.0)  # degrees off the block's axes
    softness: float = 0.5  # steps of cost within which pushes from the same place blend
    margin: float = 6.0  # px kept from the block on the way around it
    comfort: float = 35.0  # px that are better kept
    nearness_cost: float = 2.0  # how much longer a way along the block counts
    travel_lead: float = 36.0  # px from agent to target on the way; the agent settles at half of that per step
    push_lead: float = 14.0  # px from agent to target while pushing
    change_cost: float = 10.0  # steps lost with a change of contact, besides the way
    halving_cost: float = 14.0  # steps to halve the goal error, all in all
    error_cost: float = 0.25  # steps per px of goal error, besides
    solved_error: float = 1.2  # px of goal error that count as none

    @cached_property
    def contacts(self) -> tuple[np.ndarray, np.ndarray]:
        """Where pushes begin and their directions, (M,) each, in the block's frame."""
        starts, directions = [], []
        for corner, following in zip(OUTLINE, np.roll(OUTLINE, -1), strict=True):
            edge = following - corner
            count = int(np.ceil(np.abs(edge) / self.spacing))
            inward = 1j * edge / np.abs(edge)
            starts.append(corner + edge * (np.arange(count) + 0.5) / count - inward * (AGENT_RADIUS + self.clearance))
            directions.append(np.full(count, inward))
        starts, directions = np.concatenate(starts), np.concatenate(directions)
        free = distance_to_block(starts)[0] > AGENT_RADIUS + 0.25 * self.margin  # not wedged between bar and stem
        return starts[free], directions[free]

    @cached_property
    def nodes(self) -> np.ndarray:
        """Places (N,) around the block, in its frame, through which ways lead; the M starts of pushes first."""
        rings = [CORNERS + CORNER_NORMALS * (AGENT_RADIUS + gap) for gap in (self.clearance, self.comfort)]
        return np.concatenate([self.contacts[0], *rings])

    @cached_property
    def edges(self) -> np.ndarray:
        """Lengths (N, N) of the straight ways between nodes that keep off the block, else inf."""
        return self.effort(self.nodes[:, None], self.nodes[None], self.margin)

    @cached_property
    def push_strides(self) -> np.ndarray:
        """px by which simulated pushes advance: finely at first, 111 px in all."""
        return np.minimum(1.0 + 0.4 * np.arange(22), 8.0)

    def effort(self, start: np.ndarray, stop: np.ndarray, margin: float) -> np.ndarray:
        """Lengths (...) of straight ways from (...) to (...) in the block's frame; near the block they count more.

        Ways nearer than `margin` px are inf, unless that is at an end, straight off the block or towards it.
        """
        part = np.linspace(0.0, 1.0, 20)
        distance, _ = distance_to_block(start[..., None] * (1 - part) + stop[..., None] * part)
        length = np.abs(stop - start)
        leaving = distance[..., :1] + 0.4 * length[..., None] * part
        arriving = np.maximum(distance[..., -1:] + 0.4 * length[..., None] * (1 - part), AGENT_RADIUS)
        is_clear = np.all(distance >= np.minimum(np.minimum(leaving, arriving), AGENT_RADIUS + margin), -1)
        nearness = np.mean(np.clip(1.0 - (distance - AGENT_RADIUS) / self.comfort, 0.0, 1.0), -1)
        return np.where(is_clear, length * (1.0 + self.nearness_cost * nearness), np.inf)

    def time_to_finish(self, error: np.ndarray) -> np.ndarray:
        """Estimated steps (...) from a goal error (...) to the goal."""
        return self.halving_cost * np.log2(np.maximum(error / self.solved_error, 1.0)) + self.error_cost * error

    def imagine(
        self, start: np.ndarray, direction: np.ndarray, centre: complex, turn: complex
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps (K,) that remain when straight pushes from (K,) along (K,) begin, and their best lengths (K,).

        Pushes that do not reduce the error, or press the block into a wall, take infinitely many.
        """
        centre, turn = np.full(start.shape, centre), np.full(start.shape, turn)
        outline = centre[:, None] + turn[:, None] * OUTLINE
        error_now, outside_now = goal_error(outline), outside(outline, WALLS).max(-1)
        least, best_length = np.full(start.shape, np.inf), np.zeros(start.shape)
        for length in np.cumsum(self.push_strides):
            agent = start + direction * length
            centre, turn = push_out(agent, centre, turn)
            outline = centre[:, None] + turn[:, None] * OUTLINE
            error = goal_error(outline)
            time = length / (0.5 * self.push_lead) + self.time_to_finish(error)
            impossible = (outside(outline, WALLS).max(-1) > outside_now + 0.1) | (outside(agent, REACH) > 0)
            better = (error < 0.95 * error_now) & ~impossible & (time < least)
            least, best_length = np.where(better, time, least), np.where(better, length, best_length)
        return least, best_length

    def act(self, state: np.ndarray) -> np.ndarray:
        """Target (2,) of the agent in px, 0..512, for a state (5,): agent x, agent y, block x, block y, block angle."""
        agent = complex(state[0], state[1])
        turn = np.exp(1j * state[4])
        centre = complex(state[2], state[3]) - turn * POSITION
        target = self.target(agent, centre, turn)
        return np.clip([target.real, target.imag], 0.0, 512.0)

    def target(self, agent: complex, centre: complex, turn: complex) -> complex:
        """Target of an agent, given the block's centre of gravity and turn."""
        place = np.array((agent - centre) * turn.conjugate())
        nodes = centre + turn * self.nodes
        inside = outside(nodes, REACH) == 0
        direct = np.where(inside, self.effort(place, self.nodes, 0.6 * self.margin), np.inf)
        way = direct if np.any(direct < np.inf) else np.where(inside, np.abs(nodes - agent), np.inf)
        way, before = shortest_ways(way, np.where(inside & inside[:, None], self.edges, np.inf))

        start, direction = nodes[: len(self.contacts[0])], turn * self.contacts[1]
        cost = way[: len(start)] / (0.5 * self.travel_lead) + self.change_cost
        around = len(start)  # pushes with a way around the block come first, then those from here
        here, here_cost = self.pushes_from_here(place)
        start, direction = np.append(start, np.full(len(here), agent)), np.append(direction, turn * here)
        time, length = self.imagine(start, direction, centre, turn)
        cost = np.append(cost, here_cost) + time

        best = int(np.argmin(cost))
        if cost[best] == np.inf:  # no push helps or none can be reached
            return agent
        aim = direction * np.minimum(self.push_lead, length)
        if best >= around:  # neighbouring tilts blend, so that targets do not jump
            weight = np.exp((cost[best] - cost[around:]) / self.softness)
            return agent + np.sum(weight * aim[around:]) / np.sum(weight)
        if np.abs(start[best] - agent) < self.arrival:
            return start[best] + aim[best]
        return self.ahead(agent, nodes, before, best, centre, turn)

    def pushes_from_here(self, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Directions (K,) of pushes that an agent at (), in the block's frame, can begin at once; costs on top (K,).

        From afar there are none: K is 0.
        """
        distance, normal = distance_to_block(place)
        gap = distance - AGENT_RADIUS
        if gap > self.clearance + 4.0:
            return np.zeros(0, complex), np.zeros(0)
        tilt = np.tile(np.deg2rad(self.tilts), (4, 1))
        direction = np.array([1, 1j, -1, -1j])[:, None] * np.exp(1j * tilt)
        cost = np.abs(tilt) + np.clip(gap / self.clearance, 0.0, 1.0) * self.change_cost
        is_towards = (direction * normal.conj()).real < 0.2
        return direction[is_towards], cost[is_towards]

    def ahead(
        self, agent: complex, nodes: np.ndarray, before: np.ndarray, last: int, centre: complex, turn: complex
    ) -> complex:
        """The farthest point on the way to node `last`, `travel_lead` at most, that a straight line reaches."""
        way = [nodes[last]]
        while before[last] >= 0:
            last = before[last]
            way.append(nodes[last])
        way = np.array([agent, *reversed(way)])
        travelled = np.append(0.0, np.cumsum(np.abs(np.diff(way))))
        points = np.interp(np.arange(4.0, self.travel_lead + 1.0, 4.0), travelled, way)
        place, places = ((z - centre) * turn.conjugate() for z in (np.array(agent), points))
        clear = np.flatnonzero(self.effort(place, places, 0.3 * self.margin) < np.inf)
        return points[clear[-1]] if len(clear) else points[0]
