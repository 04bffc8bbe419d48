"""A command line that is refused is answered with what the command expects."""

import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from tests.messages import told


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("train --epochs 5", ["'--epochs'", "--train.epochs=VALUE", "docs/config.md"]),
        ("train --batch-size 5", ["--data.batch_size=VALUE"]),
        ("train --lr 5", ["--train.lr=VALUE", "docs/config.md"]),
        ("evaluate runs/x --device cuda", ["CUDA_VISIBLE_DEVICES=1", "ACCELERATE_USE_CPU=true"]),
        ("train --gpu_id 1", ["CUDA_VISIBLE_DEVICES=1"]),
        ("train --nothing 5", ["'--nothing'", "--set train.batch_size=64"]),
        ("train a.json b.json", ["CONFIG", "b.json", "--set KEY=VALUE"]),
        ("convert ./a ./b", ["'--to'", "zarr, lerobot, robomimic, npz"]),
        ("configs push_t", ["push_t", "dp-prior configs", "--schema"]),
        ("make-demonstrations push_t --out x", ["push_t", "--task", "--episodes"]),
        ("watch ./a ./b", ["dp-prior watch", "RUNS"]),
    ],
)
def test_the_answer_names_what_is_expected(words, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("{}")
    result = CliRunner().invoke(main, words.split(), prog_name="dp-prior")
    assert result.exit_code == 2 and told(result.output, *parts), result.output


def test_a_shipped_name_after_a_command_without_arguments_is_led_to_training():
    result = CliRunner().invoke(main, ["configs", "digits"], prog_name="dp-prior")
    assert result.exit_code == 2 and told(result.output, "(digits)", "dp-prior train digits")


def test_an_option_that_is_nearly_right_keeps_the_answer_of_click():
    result = CliRunner().invoke(main, ["train", "--resum", "auto"], prog_name="dp-prior")
    assert result.exit_code == 2 and told(result.output, "'--resum'", "--resume")
    assert "VALUE" not in result.output
