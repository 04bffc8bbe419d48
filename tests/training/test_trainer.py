"""The loop, with parts of the test's own: any model, loader, tracker, saver and evaluator will do."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import PartError
from dp_prior.diffusion.process import Loss
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import REQUEST
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.ema import ConstantDecay
from dp_prior.training.guard import NotFiniteError
from dp_prior.training.optimizer import AdamWConfig
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.training_config import TrainingConfig
from tests.messages import naming, told


class Line(nn.Module):
    """y = weight * noise; its loss pulls the weight to the batch's x."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.dropout = nn.Dropout(0.5)
        never = SimpleNamespace(learns_timesteps=False, self_conditions=lambda seed, samples_seen: False)
        self.process = SimpleNamespace(steps=4, **vars(never))

    def forward(self, batch, random, self_condition):
        size = len(batch.x)
        errors = (self.dropout(self.layer(batch.x)) - random.normal(1)).square()[:, 0]
        ones = torch.ones(size)
        return Loss(total=errors.mean(), per_sample=errors, t=torch.arange(size) % 4, terms={}, valid=ones)


class Numbers:
    """Samples 0, 1, 2, ... of an epoch of 12, two micro-batches of 2 a step."""

    global_batch_size = 4

    def __len__(self):
        return 12

    def ids(self, samples_seen):
        return (samples_seen + torch.arange(4)) % 12

    def from_sample(self, samples_seen):
        while True:
            positions = samples_seen + torch.arange(4)
            yield [
                Batch(x=part[:, None].float() % 12 + 1, cond={}, mask=None, ids=part % 12, positions=part)
                for part in positions.split(2)
            ]
            samples_seen += 4


@dataclass
class Listener:
    """Tracker and saver."""

    rows: list = field(default_factory=list)
    images: list = field(default_factory=list)
    saved: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    error: Exception | None = None

    def log(self, metrics, progress):
        self.rows.append((progress.global_step, metrics))

    def log_images(self, images, progress):
        self.images.append((progress.global_step, images))

    def log_error(self, error, progress):
        self.errors.append(error)

    def log_work(self, done):
        pass

    def submit(self, snapshot, progress, metrics, is_best):
        self.saved.append((progress.global_step, is_best))

    def check(self):
        if self.error is not None:
            raise self.error

    def reserve(self, snapshot):
        self.reserved = snapshot.nbytes


@dataclass
class Score:
    """Measures the clock."""

    every: Cadence
    values: dict = field(default_factory=dict)

    def run(self, models, accelerator, progress):
        value = self.values.get(progress.global_step, 1.0)
        return SimpleNamespace(metrics={"validation/ema/loss": value}, media={"picture": "path"})


class Filming(Score):
    """Its film did not fit."""

    def run(self, models, accelerator, progress):
        return SimpleNamespace(**vars(super().run(models, accelerator, progress)), unwritten=[OSError(28, "full", "f")])


def build(listener=None, evaluators=(), seed=0, **change):
    torch.manual_seed(0)
    config = {"steps": 6, "accumulation": 2, "log_every": {"steps": 2}, "save_every": {"steps": 4}, **change}
    return PolicyTrainer(
        Line(),
        Numbers(),
        TrainingConfig.model_validate(config),
        ranks=Ranks(make_accelerator("fp32")),
        tracker=listener or Listener(),
        writer=listener or Listener(),
        evaluators=list(evaluators),
        seed=seed,
        documents={},
    )


def test_logs_evaluates_and_saves_when_due_and_all_of_it_at_the_end():
    listener = Listener()
    trainer = build(listener, [Score(Cadence(steps=4))], steps=7)
    assert trainer.fit() == Progress(28, 7)
    assert [step for step, row in listener.rows if "train/loss" in row] == [2, 4, 6, 7]
    assert [step for step, row in listener.rows if "validation/ema/loss" in row] == [4, 7]
    assert listener.saved == [(4, True), (7, False)]
    assert [step for step, _ in listener.images] == [4, 7]


def test_new_best_is_saved_at_once():
    listener = Listener()
    build(listener, [Score(Cadence(steps=1), {1: 0.5, 3: 0.4, 5: float("nan")})], save_every={"steps": 100}).fit()
    assert listener.saved == [(1, True), (3, True), (6, False)]


def test_failed_save_ends_the_run_at_the_next_step():
    listener = Listener(error=OSError("disk full"))
    trainer = build(listener)
    with pytest.raises(OSError, match=naming("disk full")):
        trainer.fit()
    assert trainer.progress.global_step == 1


@pytest.mark.parametrize(
    ("budget", "samples", "steps"),
    [
        ({"steps": 5}, 20, 5),
        ({"samples": 18, "steps": None}, 18, 5),
        ({"epochs": 1.5, "steps": None}, 18, 5),
        ({"epochs": 1e-3, "steps": None}, 1, 1),  # less than a sample is one, not a run that is over before it begins
    ],
)
def test_budget_in_steps_samples_and_epochs(budget, samples, steps):
    trainer = build(**budget)
    assert (trainer.total_samples, trainer.total_steps) == (samples, steps)
    assert trainer.fit() == Progress(4 * steps, steps)  # whole batches


def test_smallest_share_of_an_epoch_is_a_step():
    assert build(epochs=1e-9, steps=None).fit() == Progress(4, 1)


def test_learning_rate_is_that_of_the_step_taken():
    listener = Listener()
    trainer = build(listener, log_every={"steps": 1})
    trainer.fit()
    assert [row["train/lr"] for _, row in listener.rows] == [trainer.config.lr.at(step, 6) for step in range(6)]


def test_rows_give_the_epoch_and_the_decay_of_the_step_taken():
    listener = Listener()
    trainer = build(listener, log_every={"steps": 1})
    trainer.fit()
    for step, row in listener.rows:
        assert row["train/epoch"] == 4 * step / 12
        assert row["train/ema_decay"] == trainer.config.ema["ema"].at(step)


def test_logged_loss_is_the_mean_over_the_samples_since_the_last_line():
    losses, listener = [], Listener()
    trainer = build(listener)
    record_losses = trainer._record_losses

    def recording(micro_batches):
        losses.extend(value for loss in micro_batches for value in loss.per_sample.tolist())
        record_losses(micro_batches)

    trainer._record_losses = recording
    trainer.fit()
    for index, (_, row) in enumerate(listener.rows):
        part = losses[8 * index : 8 * index + 8]
        assert row["train/loss"] == pytest.approx(sum(part) / 8)
        quartiles = [row[f"train/loss_q{quartile}"] for quartile in range(2)]
        assert quartiles == pytest.approx([sum(part[q::2]) / 4 for q in range(2)])


def test_logged_loss_is_that_of_evenly_drawn_timesteps():
    """Timesteps of losses 1, 2, 6 and 7 drawn with odds of 1, 2, 6 and 7: factors 4, 2, 2/3 and 4/7."""
    trainer, drawn = build(), [0] + 2 * [1] + 6 * [2] + 7 * [3]
    t, loss = torch.tensor(drawn), torch.tensor([1.0, 2.0, 6.0, 7.0])
    parts = [
        Loss(
            total=torch.tensor(0.0),
            per_sample=loss[part],
            t=part,
            terms={"vb": 2 * loss[part]},
            valid=torch.ones(8),
            factor=torch.tensor([4, 2, 2 / 3, 4 / 7])[part],
        )
        for part in t.split(8)
    ]
    trainer._record_losses(parts)
    found = trainer.means.reduce()
    assert [found[f"train/loss_q{quartile}"] for quartile in range(4)] == pytest.approx([1, 2, 6, 7])
    assert found["train/loss"] == pytest.approx(4) and found["train/vb"] == pytest.approx(8)
    trainer.online.process.steps = 8  # now the losses of 1 and 2 share a quarter, and so do those of 6 and 7
    trainer._record_losses(parts)
    found = trainer.means.reduce()
    assert [found[f"train/loss_q{quartile}"] for quartile in range(2)] == pytest.approx([1.5, 6.5])


def test_step_depends_on_the_clock_and_not_on_torchs_random_state_or_the_models_mode():
    def weight(disturb, seed=0):
        lr = {"type": "constant", "peak": 0.1, "warmup_steps": 0}
        trainer = build(seed=seed, lr=lr, max_grad_norm=1e9)  # clipped, every gradient would be the same
        batches = trainer.loader.from_sample(0)
        for _ in range(3):
            if disturb:
                torch.rand(7)
                trainer.online.eval()
            trainer.step(next(batches))
        return trainer.online.layer.weight.item()

    assert weight(False) == weight(True) != weight(False, seed=1)


def test_averages_follow_their_decay_of_the_step():
    trainer = build(ema={"ema": ConstantDecay(decay=0.5)})
    average = trainer.online.layer.weight.detach().clone()
    batches = trainer.loader.from_sample(0)
    for _ in range(4):
        trainer.step(next(batches))
        average = 0.5 * average + 0.5 * trainer.online.layer.weight.detach()
        torch.testing.assert_close(trainer.averages["ema"].model.layer.weight, average)
    assert set(trainer.models) == {"ema", "online"}


def test_request_to_stop_saves_after_the_step_at_hand():
    listener = Listener()
    trainer = build(listener)
    step = trainer.step

    def asked(batches):
        step(batches)
        if trainer.progress.global_step == 3:
            trainer.stop.ask(REQUEST)

    trainer.step = asked
    assert trainer.fit() == Progress(12, 3)
    assert listener.saved == [(3, False)] and trainer.unmeasured is None


def test_evaluation_that_a_stop_postpones_is_made_first_and_that_of_a_rollback_is_its_own():
    listener = Listener()
    trainer = build(listener, [Score(Cadence(steps=3))])
    trainer.step(next(trainer.loader.from_sample(0)))
    before, trainer.progress = Progress(8, 2), Progress(12, 3)
    assert trainer._finish_step(before, {}, is_stopping=True) and trainer.unmeasured == before
    postponed = trainer.snapshot({}).copy()
    assert not listener.rows
    trainer.fit()
    assert [step for step, row in listener.rows if "validation/ema/loss" in row] == [3, 6]
    trainer.roll_back(postponed)
    assert trainer.unmeasured == Progress(20, 5) and trainer.progress == Progress(24, 6)


@pytest.mark.promise("F2")
def test_a_film_that_did_not_fit_is_told_and_training_goes_on():
    listener = Listener()
    trainer = build(listener, [Filming(Cadence(steps=3))])
    trainer.fit()
    assert trainer.progress.global_step == 6
    assert [step for step, row in listener.rows if "validation/ema/loss" in row] == [3, 6]
    assert len(listener.errors) == 2 and all(told(line, "full", "'f'") for line in listener.errors)


def test_speed_is_that_of_steps_taken_here_and_measuring_does_not_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class SlowScore(Score):
        def run(self, models, accelerator, progress):
            now[0] += 100
            return super().run(models, accelerator, progress)

    listener = Listener()
    trainer = build(listener, [SlowScore(Cadence(steps=1))], log_every={"steps": 1})
    trainer.progress = Progress(12, 3)  # restored, which takes its time
    now[0] += 1000
    step = trainer.step

    def stepping(batches):
        now[0] += 0.5
        step(batches)

    trainer.step = stepping
    trainer.fit()
    assert [row["train/samples_per_second"] for _, row in listener.rows] == [8.0] * 3
    assert [row["train/evaluation_seconds"] for _, row in listener.rows] == [100] * 3


def test_the_share_of_waiting_for_data_is_measured_and_warned_of_once(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def run(wait_s, step_s):
        caplog.clear()
        listener = Listener()
        trainer = build(listener, log_every={"steps": 1}, steps=6)
        from_sample, step = trainer.loader.from_sample, trainer.step

        def slow(samples_seen):
            for batches in from_sample(samples_seen):
                now[0] += wait_s
                yield batches

        def stepping(batches):
            now[0] += step_s
            step(batches)

        trainer.loader.from_sample, trainer.step = slow, stepping
        trainer.fit()
        return [row["train/data_share"] for _, row in listener.rows if "train/data_share" in row]

    assert run(0.25, 0.75) == [0.25] * 6
    (warning,) = caplog.messages
    assert told(warning, "25 %", "train/data_share", "docs/cameras.md")
    assert run(0.0625, 0.9375) == [0.0625] * 6 and not caplog.messages
    assert run(2**-11, 2**-11) == [0.5] * 6 and not caplog.messages  # half a millisecond


def test_the_loss_scale_is_logged_where_there_is_a_scaler_and_only_there():
    plain, scaled = Listener(), Listener()
    build(plain).fit()
    trainer = build(scaled, steps=6)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
    trainer.fit()
    assert not any("train/loss_scale" in row for _, row in plain.rows)
    assert [row["train/loss_scale"] for _, row in scaled.rows] == [8.0, 16.0, 16.0]


@pytest.mark.parametrize("found", [None, SimpleNamespace(param_groups=[], step=None)], ids=["none", "another"])
def test_an_optimizer_of_another_package_that_is_none_is_named(found, monkeypatch):
    module = AdamWConfig.__module__
    monkeypatch.setattr(AdamWConfig, "create", lambda self, model: found)
    with pytest.raises(PartError, match=naming(f"{module}.AdamWConfig.create", f"{module}.AdamW")):
        build()


def test_gradient_of_a_step_is_that_of_its_mean_loss_however_the_batch_is_split():
    trainer = build(max_grad_norm=1e9)
    (batches,) = [next(trainer.loader.from_sample(0))]
    trainer.online.dropout.p = 0.0
    x, noise = torch.cat([batch.x for batch in batches])[:, 0], []
    for batch in batches:
        noise.append(Randomness.from_counts(0, "training", batch.positions).normal(1)[:, 0])
    weight = trainer.online.layer.weight.item()
    trainer.step(batches)
    expected = (2 * x * (weight * x - torch.cat(noise))).mean().abs()
    assert trainer.means.reduce()["train/grad_norm"] == pytest.approx(expected.item(), rel=1e-5)


def test_gradient_norm_is_the_mean_over_steps_with_a_finite_one():
    trainer, norms = build(max_grad_norm=1e9), []
    batches = trainer.loader.from_sample(0)
    for is_finite in (True, False, True):
        micro_batches = next(batches)
        if not is_finite:
            micro_batches[0].x[0] = torch.nan
        trainer.step(micro_batches)
        norms.append(trainer.means.state()["train/grad_norm"].clone())
    assert torch.equal(norms[1], norms[0]) and norms[2][1] == 2
    assert trainer.means.reduce()["train/grad_norm"] == pytest.approx((norms[2][0] / 2).item())


def test_timesteps_learn_from_the_losses_in_the_order_of_the_run_and_not_from_skipped_steps():
    trainer, told_losses = build(), []
    trainer.online.process.learns_timesteps = True
    trainer.online.process.observe = lambda *parts: told_losses.append([part.tolist() for part in parts])
    positions = torch.tensor([7, 4, 6, 5])
    batches = [SimpleNamespace(positions=part) for part in positions.split(2)]
    losses = [
        Loss(torch.tensor(0.0), 10.0 * part, 3 - part % 4, {}, torch.tensor([1, 2]) + (part[0] > 6))
        for part in positions.split(2)
    ]
    trainer._teach_timestep_sampler(batches, losses, torch.tensor(True))
    trainer._teach_timestep_sampler(batches, losses, torch.tensor(False))
    t, per_sample = [3, 2, 1, 0], [40.0, 50.0, 60.0, 70.0]
    assert told_losses == [[t, per_sample, [3, 2, 1, 2]], [t, per_sample, [0, 0, 0, 0]]]


def test_a_rollback_keeps_the_best_value_and_forgets_running_means_but_not_the_count_of_skipped_steps():
    listener = Listener()
    trainer = build(listener, [Score(Cadence(steps=1), {1: 0.5, 4: 0.1})], steps=4)
    batches = trainer.loader.from_sample(0)
    trainer.step(next(batches))
    trainer.best.improves({"validation/ema/loss": 0.5}, 1)
    early = trainer.snapshot({}).copy()
    trainer.step(next(batches))
    trainer.best.improves({"validation/ema/loss": 0.1}, 2)
    trainer.guard.count(torch.tensor(False), 2, 4)
    trainer.roll_back(early)
    assert (trainer.best.value, trainer.best.step) == (0.1, 2)
    assert trainer.means.reduce() == {} and trainer.guard.counts.tolist() == [1, 0, 2]
    assert trainer.rollbacks == 1 and trainer.progress == Progress(8, 2)


def test_too_many_skipped_steps_name_the_first_of_their_row():
    trainer = build(nonfinite_limit=3)
    batches = trainer.loader.from_sample(0)
    with pytest.raises(NotFiniteError, match=naming(3, "step 5", "[8, 9, 10, 11]")) as caught:
        for step in range(1, 7):
            micro_batches = next(batches)
            if step > 2:
                micro_batches[0].x[0] = torch.nan
            trainer.step(micro_batches)
            trainer._agree_to_stop()
    assert caught.value.first_step == 3 and trainer.progress.global_step == 5
