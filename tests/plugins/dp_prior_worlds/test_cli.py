"""What the command that records demonstrations refuses before anything is replaced."""

import pytest

from tests.cli.invoked import command
from tests.cli.refused import assert_refused
from tests.messages import told


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (
            "make-demonstrations --change goals --from four.npz --out new.npz",
            ("state (10, 4)", "action (10, 2)"),
        ),
        (
            "make-demonstrations --change embed --from four.npz --out new",
            ("state (10, 4)", "action (10, 2)"),
        ),
        (
            "make-demonstrations --change goals --from empty.npz --out new.npz",
            ("empty.npz: 1 problem", "make-demonstrations"),
        ),
        (
            "make-demonstrations --change goals --from ends.npz --out new.npz",
            ("ends.npz", "episode ends", 10),
        ),
        (
            "make-demonstrations --change goals --from good.npz --out good.npz",
            ("good.npz exists", "another file"),
        ),
        ("make-demonstrations --change goals --from good.npz --out ends.npz", ("ends.npz exists", "another file")),
        ("make-demonstrations --change align --from good.npz --out link.npz", ("link.npz exists", "another file")),
        ("make-demonstrations --change goals --out new.npz", ("--from", "--change")),
        ("make-demonstrations --from good.npz --out new.npz", ("--from", "--change")),
        ("make-demonstrations --change align --from good.npz --seed 3 --out new.npz", ("--seed", "--change")),
        ("make-demonstrations --episodes 1 --out good.npz", ("good.npz exists", "another file")),
        ("make-demonstrations --episodes 1 --out link.npz", ("link.npz exists", "another file")),
        ("make-demonstrations --episodes 1 --out new", ("--out", "new", ".npz")),
        ("make-demonstrations --change align --from good.npz --out new.zarr", ("--out", "new.zarr", ".npz")),
        ("make-demonstrations --task TwoArmLift --out new.npz", ("'TwoArmLift'", "--task", "'Lift'")),
        ("make-demonstrations --task zzz --out new.npz", ("'zzz'", "pusht", "insertion", "NutAssemblySquare", "MT50")),
        ("make-demonstrations --task insertion --out new.npz --noise nan", ("nan", "finite")),
    ],
)
def test_what_a_command_cannot_use_is_refused_in_a_line_and_nothing_is_replaced(line, refusal, tmp_path, monkeypatch):
    assert_refused(line, refusal, tmp_path, monkeypatch)


@pytest.mark.parametrize("option", [["--episodes", "0"], ["--seed", "-1"], ["--workers", "0"]])
def test_demonstrations_are_not_begun_with_numbers_that_cannot_be(option, tmp_path):
    found = command("make-demonstrations", "--out", str(tmp_path / "d.npz"), *option)
    assert found.exit_code == 2 and told(found.output, f"'{option[0]}'", option[1], "range")
