from dp_prior.files.locks import FileLock
from dp_prior_streams.shared_budget import SUFFIX, announce_budget, largest_other_budget, withdraw_budget


def test_the_budgets_of_this_process_and_of_processes_that_ended_do_not_count(tmp_path):
    assert largest_other_budget(tmp_path) == 0
    announce_budget(tmp_path, 5000)
    (tmp_path / f"9000-0{SUFFIX}").write_text("")  # its process was killed
    assert largest_other_budget(tmp_path) == 0 and len([*tmp_path.iterdir()]) == 1
    announce_budget(tmp_path, 70)
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["70"]
    withdraw_budget(tmp_path)
    withdraw_budget(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_the_largest_budget_of_others_that_run_counts(tmp_path):
    locks = [FileLock.take(tmp_path / f"{size}-0{SUFFIX}") for size in (900, 8000, 3)]
    (tmp_path / f"notes{SUFFIX}").write_text("of a user")
    announce_budget(tmp_path, 100)
    assert largest_other_budget(tmp_path) == 8000
    locks[1].release()
    assert largest_other_budget(tmp_path) == 900
    for lock in locks:
        lock.release()
    assert largest_other_budget(tmp_path) == 0 and (tmp_path / f"notes{SUFFIX}").exists()
    withdraw_budget(tmp_path)


def test_a_file_that_cannot_be_locked_counts_as_that_of_a_process(tmp_path):
    (tmp_path / f"400-0{SUFFIX}").mkdir()
    assert largest_other_budget(tmp_path) == 400
