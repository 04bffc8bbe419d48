import os
from pathlib import Path

import pytest

from dp_prior.files.home import expanded
from tests.messages import naming


def test_a_tilde_is_the_home_directory_and_before_a_name_that_no_user_has_a_letter(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/data") == expanded(Path("~/data")) == tmp_path / "data"
    assert [str(expanded(name)) for name in ("a/~", "~nobody-has-this/x", "")] == ["a/~", "~nobody-has-this/x", "."]


def test_a_user_without_a_home_directory_is_told_so(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(FileNotFoundError, match=naming("~/data", "HOME")):
        expanded("~/data")


def test_paths_of_users_are_expanded_in_one_place():
    root = Path(__file__).parents[2] / "dp_prior"
    others = [path for path in root.rglob("*.py") if ".expanduser()" in path.read_text() and path.name != "home.py"]
    assert not others
