"""Names of a new run that some disks refuse or take for one; stored runs keep theirs."""

import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.run.config import TrainConfig
from dp_prior.run.start import check_start
from dp_prior.run.written_names import check_names
from tests.messages import naming
from tests.tiny import experiment, tiny


def config_of(place, **changes) -> TrainConfig:
    return TrainConfig.from_json(json.dumps(tiny(place, **changes)))


def reports(*names):
    """Evaluators that write reports, and one whose metric is monitored."""
    return [{"type": "loss"}, *({"type": "action_error", "name": name, "eval_timesteps": [4]} for name in names)]


def uploads(*urls):
    return [{"type": "fsspec", "url": url} for url in urls]


def copies(*places):
    return [{"type": "local", "save_best_to": place} for place in places]


REFUSED = {
    "evaluators": ({"evaluate": reports("Held", "held")}, ("Held", "held")),
    "evaluators in both parts": ({"evaluate": reports("Held"), "test": reports("HELD")[1:]}, ("Held", "HELD")),
    "accents": ({"evaluate": reports("Held", "é", "e\u0301")}, ("é", "e\u0301")),
    "averages": ({"train__ema": dict.fromkeys(("ema", "slow", "Slow"), {"type": "power"})}, ("slow", "Slow")),
    "copies": ({"tracker__save": copies("copies/best", "copies/Best")}, ("copies/best", "copies/Best")),
    "copies of one saver": (
        {"tracker__save": [{"type": "local", "save_best_to": "A", "save_latest_to": "a"}]},
        ("A", "a"),
    ),
    "outboxes": (
        {"tracker__save": uploads("memory://A/x", "memory://a/x")},
        ("fsspec_memory_A_x", "fsspec_memory_a_x"),
    ),
    "a character": ({"evaluate": reports("Held", "a:b")}, ("a:b",)),
    "a device": ({"evaluate": reports("Held", "con.x")}, ("con.x",)),
}


@pytest.mark.parametrize(("changes", "parts"), REFUSED.values(), ids=REFUSED)
def test_a_new_run_refuses_names_that_a_disk_takes_for_one_or_refuses(changes, parts, tmp_path):
    config = config_of(tmp_path, **changes)
    with pytest.raises(ConfigError, match=naming(*parts)):
        check_names(config)
    with pytest.raises(ConfigError, match=naming(*parts)):
        check_start(config, config.tracker.directory, "auto")
    assert not config.tracker.directory.exists()


ACCEPTED = {
    "plain": {},
    "words": {"evaluate": reports("Held", "held_2", "held-3", "名前")},
    "longest": {"evaluate": reports("Held", "a" * 80)},
    "places": {"tracker__save": [*uploads("memory://a/x", "memory://a/y"), *copies("best", "copies/best")]},
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_other_names_are_accepted(changes, tmp_path):
    config = config_of(tmp_path, **changes)
    check_names(config)
    check_start(config, config.tracker.directory, "auto")


def test_a_run_that_has_such_names_goes_on(tmp_path, monkeypatch):
    settings = {"evaluate": reports("Held", "held")}
    with monkeypatch.context() as patch:
        patch.setattr("dp_prior.run.written_names.check_names", lambda config: None)
        experiment(tiny(tmp_path, train__steps=2, **settings)).run()
    again = experiment(tiny(tmp_path, train__steps=4, **settings))
    assert again.run().status == "finished"
