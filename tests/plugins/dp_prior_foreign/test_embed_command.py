"""What the command refuses, before anything is written; test_embed.py runs it."""

import pytest

from tests.cli.refused import assert_refused


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("embed --model hashed --out new --texts ends.npz --set a=3", ("--set", "CONFIG")),
        ("embed --model hashed --out new --config_file digits --key a --column b", ("--column", "--texts", "--key")),
        ("embed --model hashed --out new --texts ends.npz --key a", ("--texts", "--key")),
        ("embed --model hashed --out new --images ends.npz --tokens", ("--tokens", "--texts")),
    ],
)
def test_what_it_cannot_use_is_refused_in_a_line_and_nothing_is_replaced(line, refusal, tmp_path, monkeypatch):
    assert_refused(line, refusal, tmp_path, monkeypatch)
