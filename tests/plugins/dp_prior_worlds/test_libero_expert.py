"""The expert of LIBERO's tasks solves them in a world of boxes, where a hand goes where its actions lead."""

import numpy as np
import pytest

from dp_prior_worlds.libero_expert import HAND, pick_and_place

DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
CAN, FLAT, BOTTLE, BOWL = (0.06, 0.06, 0.076), (0.08, 0.043, 0.018), (0.036, 0.053, 0.146), (0.107, 0.107, 0.051)


class Boxes:
    """A box on the ground and its goal. The hand follows at once, its palm is stopped by boxes below it, and fingers
    close by 1 cm a step; what is between them when they touch it is held."""

    def __init__(self, size, relation="in", others=(), start=(0.05, -0.1)):
        self.size, self.relation, self.others = np.array(size), relation, np.array(others).reshape(-1, 2, 3)
        self.place, self.goal = np.array([*start, size[2] / 2]), np.array([0.0, 0.25, 0.0])
        self.hand, self.gap, self.is_held, self.speed = np.array([-0.15, 0.0, 0.26]), 0.08, False, 0.0
        self.goal_top = 0.14 if relation == "in" else 0.02
        self.width = size[1] if min(size[:2]) <= 0.07 else 0.006  # a bowl is held at its rim

    def scene(self):
        return {
            "relation": self.relation,
            "object": self.place.copy(),
            "low": self.place - self.size / 2,
            "high": self.place + self.size / 2,
            "goal": self.goal.copy(),
            "goal_top": self.goal_top,
            "hand": self.hand.copy(),
            "hand_matrix": DOWN,
            "gap": self.gap,
            "gap_speed": self.speed,
            "is_held": self.is_held,
            "others": self.others,
        }

    def step(self, action):
        assert action.shape == (7,) and abs(action).max() <= 1
        np.testing.assert_allclose(action[3:6], 0, atol=1e-6, err_msg="the hand points down and is not turned")
        move = 0.05 * action[:3].astype(np.float64) / 1.5
        for low, high in self.others:  # the palm, 3 cm above the tips
            hand = self.hand + move
            is_over = (hand[:2] + HAND > low[:2]).all() and (hand[:2] - HAND < high[:2]).all()
            if is_over and hand[2] + 0.03 < high[2]:
                move[2] = high[2] - 0.03 - self.hand[2]
        self.hand += move
        if self.is_held:
            self.place += move
        closed = self.width if self.touches() else 0.0
        gap = np.clip(self.gap - 0.01 * action[6], closed, 0.08)
        self.speed, self.gap = 20 * abs(gap - self.gap), gap
        self.is_held = self.touches() and self.gap <= self.width
        if not self.is_held:
            self.place[2] = self.size[2] / 2 + (self.goal_top if self.relation == "on" and self.is_over_goal() else 0.0)

    def touches(self):
        reach = self.size / 2 + 0.005
        return bool((abs(self.hand - self.place) < reach).all())

    def is_over_goal(self):
        return np.linalg.norm(self.place[:2] - self.goal[:2]) < 0.03

    def is_solved(self):
        limit = 0.1 if self.relation == "in" else self.goal_top + self.size[2] / 2 + 1e-6
        return self.is_over_goal() and self.place[2] < limit


def played(world, steps=280):
    for number in range(steps):
        world.step(pick_and_place(world.scene()))
        if world.is_solved():
            return number + 1
    return None


@pytest.mark.parametrize(
    ("size", "relation"), [(CAN, "in"), (FLAT, "in"), (BOTTLE, "in"), (BOWL, "on"), (CAN, "on"), (FLAT, "on")]
)
@pytest.mark.parametrize("start", [(0.05, -0.1), (-0.12, -0.24), (0.1, 0.02)])
def test_an_object_is_picked_up_and_placed_within_the_steps_of_published_evaluations(size, relation, start):
    assert played(Boxes(size, relation, start=start), 220)


def test_what_is_dropped_is_picked_up_again():
    world = Boxes(CAN)
    while not (world.is_held and world.place[2] > 0.12):
        world.step(pick_and_place(world.scene()))
    world.is_held, world.gap, world.place[2] = False, 0.08, CAN[2] / 2
    assert played(world)


@pytest.mark.parametrize(("low", "high", "side"), [(0.074, 0.136, -1), (-0.036, 0.026, 1)])
def test_a_long_object_is_grasped_away_from_a_neighbour_that_stands_in_the_way_of_the_palm(low, high, side):
    """A can in front of the object or behind it, below the palm, which is long across the object."""
    world = Boxes(FLAT, others=[[[low, -0.2, 0.0], [high, -0.17, 0.076]]], start=(0.05, -0.1))
    grasps = []
    for _ in range(280):
        world.step(pick_and_place(world.scene()))
        grasps += [world.hand[0] - world.place[0]] if world.is_held else []
        if world.is_solved():
            break
    assert world.is_solved() and np.sign(grasps[0]) == side and abs(grasps[0]) > 0.005


def test_a_narrow_object_across_turns_the_fingers():
    world = Boxes((0.036, 0.146, 0.053))
    action = pick_and_place(world.scene())
    assert abs(action[5]) == 1 and (action[3:5] == 0).all()
    assert pick_and_place(Boxes((0.146, 0.036, 0.053)).scene())[5] == 0


def test_a_tilted_hand_turns_back():
    scene = Boxes(CAN).scene()
    angle = 0.2
    tilt = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    scene["hand_matrix"] = tilt @ DOWN
    assert pick_and_place(scene)[3] == pytest.approx(-np.sin(angle) / 0.5, abs=1e-6)
