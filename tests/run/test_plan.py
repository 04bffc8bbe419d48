"""The plan: what a run will do, what stands out in its settings, and which parts learn at a rate of their own."""

from tests.messages import told
from tests.tiny import train, write


def test_no_line_of_the_plan_ends_in_blanks_without_a_description(tmp_path):
    lines = train(write(tmp_path, description=""), "--check").output.splitlines()
    assert any(line.startswith("  run  ") for line in lines)
    assert not [line for line in lines if line != line.rstrip()]


def test_the_plan_warns_of_a_clip_that_cuts_into_the_data(tmp_path):
    def lines(**change):
        return train(write(tmp_path, **change), "--check").output.splitlines()

    parts = ("warning", "task.diffusion.clip", "+-1", "normalised units")
    assert not any(told(line, *parts) for line in lines())
    assert any(told(line, *parts) for line in lines(task__normalizer={"action": {"type": "gaussian"}}))


def test_the_plan_tells_the_checkpoint_whose_weights_a_new_run_takes(tmp_path):
    assert train(write(tmp_path)).exit_code == 0
    second = {"tracker__data_path": str(tmp_path / "second"), "train__init_from": str(tmp_path / "run")}
    assert told(train(write(tmp_path, **second), "--check").output, "start from", tmp_path / "run")


def test_the_plan_tells_how_a_rank_divides_its_share_of_a_global_batch(tmp_path):
    def lines(**change):
        return train(write(tmp_path, data__global_batch_size=24, **change), "--check").output

    assert told(lines(data__batch_size=24), "batch", "24 = 24 a micro-batch x 1 summed x 1 rank", "any number")
    assert told(lines(data__batch_size=12), "batch", "24 = 12 a micro-batch x 2 summed x 1 rank")
    assert told(lines(data__batch_size=7), "batch", "24 = 6 a micro-batch x 4 summed x 1 rank")
    assert told(lines(data__batch_size=11), "batch", "24 = 8 a micro-batch x 3 summed x 1 rank")
    uneven = train(write(tmp_path, data__global_batch_size=23, data__batch_size=8), "--check").output
    assert told(uneven, "batch", "23 = 8 or 7 a micro-batch x 3 summed x 1 rank")
    plain = train(write(tmp_path), "--check").output
    assert told(plain, "batch", "8 = 8 a micro-batch x 1 summed x 1 rank") and not told(plain, "any number")
    accumulated = lines(data__batch_size=12, train__accumulation=2)
    assert told(accumulated, "batch", "24 = 12 a micro-batch x 2 summed x 1 rank") and not told(
        accumulated, "any number"
    )
    assert told(lines(data__batch_size=24, train__accumulation=2), "batch", "2 summed", "any number")
