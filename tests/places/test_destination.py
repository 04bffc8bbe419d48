"""What an upload says of its success, and the folders it tries."""

import itertools

import pytest

from dp_prior.places.destination import delivered, folders
from dp_prior.places.pointer import Pointer
from tests.messages import told


def test_every_folder_that_is_tried_is_another_one_that_a_pointer_may_name():
    names = list(itertools.islice(folders("step_00000012"), 20))
    assert len(set(names)) == 20 and names[0] == "checkpoints/step_00000012"
    assert all(Pointer(folder=name, manifest_sha256="0" * 64).folder == name for name in names)


@pytest.mark.parametrize("kinds", [(), ("latest",), ("latest", "best")])
def test_a_success_names_the_place_and_each_pointer_that_moved_and_no_other(kinds):
    report = delivered("here", kinds, "a better one stays")
    words = report.message.split()
    assert report.trouble is None and told(report.remark, "better", "stays") and "here" in words
    assert [kind for kind in ("latest", "best") if kind in words] == list(kinds)
