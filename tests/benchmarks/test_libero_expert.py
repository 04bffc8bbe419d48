"""The table of LIBERO's expert counts the starts of every task, and names their share with its interval."""

import numpy as np

from benchmarks import libero_expert
from tests.messages import told


def test_every_task_has_its_own_starts_and_a_row(monkeypatch, capsys):
    seeds = []

    def demonstrate(seed, suite, noise, python, side):
        seeds.append(seed)
        return np.zeros((60 + seed, 7)), np.array(seed % 3 != 1)

    monkeypatch.setattr(libero_expert, "demonstrate", demonstrate)
    monkeypatch.setattr(libero_expert, "tasks_of", lambda suite, python: [("a_cup", "a"), ("a_pot", "b"), ("c", "c")])
    monkeypatch.setattr("sys.argv", ["libero_expert", "libero_object", "--episodes", "2", "--seed", "4"])
    libero_expert.main()
    assert seeds == [6, 9, 4, 7, 5, 8], "the task of a seed is its remainder"
    cup, pot, rest, everything = capsys.readouterr().out.splitlines()
    assert told(cup, "a cup", "2 of 2", "100 (34 to 100)", "67") and told(pot, "a pot", "0 of 2", "0 (0 to 66)", "65")
    assert told(everything, "all", "4 of 6") and told(rest, "2 of 2")
