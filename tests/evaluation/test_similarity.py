"""Similarity: every number from its definition, over the whole split, however it is dealt out."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dp_prior.config import ConfigError
from dp_prior.evaluation.similarity import SimilarityConfig, margin, recalls
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import Abandoned
from dp_prior.job.work import Work
from dp_prior.tasks.prior import PriorConfig
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.randomness import Randomness
from tests.evaluation.fakes import NOW, on_ranks
from tests.messages import naming

DIM, N = 6, 23


class Pairs:
    """n texts; every two neighbours share an image."""

    device = torch.device("cpu")

    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = F.normalize(torch.randn((n + 1) // 2, DIM, generator=generator), dim=-1).repeat_interleave(2, 0)[:n]
        self.text = self.x + 0.5 * torch.randn(n, DIM, generator=generator)

    def __len__(self):
        return len(self.x)

    def fetch(self, ids):
        mask = torch.ones(len(ids), dtype=torch.bool)
        return Batch(x=self.x[ids], cond={"text": self.text[ids]}, mask=mask, ids=ids)


def data(n=N):
    spec = Spec(x_shape=(DIM,), cond_shapes={"text": (DIM,)})
    return SimpleNamespace(train=Pairs(40, 0), val=Pairs(n, 1), test=Pairs(n, 2), spec=spec)


def prior(seed=0):
    torch.manual_seed(seed)
    record = {
        "backbone": {"embed_dim": 16, "n_layers": 1, "n_heads": 2},
        "diffusion": {"schedule": {"type": "cosine", "steps": 20}},
    }
    return PriorConfig.from_json(json.dumps({**record, "sampler": {"type": "ddim", "steps": 3}})).create(data().spec)


def measure(accelerator=None, place=None, parts=None, built=None, **change):
    config = SimilarityConfig(**{"models": ("ema",), "eval_timesteps": (3,), **change})
    evaluator = config.create(parts or data(), place)
    models = built or {"ema": prior(), "online": prior(1)}
    result = evaluator.run(models, accelerator, NOW)
    assert list(result.metrics) == config.metric_names() and models["ema"].training
    return result.metrics


def cosine(a, b):
    return [float(np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)) for x, y in zip(a, b, strict=True)]


def test_every_number_is_its_definition():
    part, model = data().val, prior().eval()
    random = Randomness.from_counts(0, "similarity", torch.arange(N))
    drawn = model.predict(part.text, random=random).numpy().astype(np.float64)
    x, text = part.x.numpy().astype(np.float64), part.text.numpy().astype(np.float64)
    partner = [(i + N // 2) % N for i in range(N)]
    mean_image = data().train.x.numpy().mean(0)[None].repeat(N, 0)
    images = [x[2 * i] for i in range((N + 1) // 2)]

    def recall(queries, k):
        hits = 0
        for i, query in enumerate(queries):
            order = sorted(range(len(images)), key=lambda j: -cosine([query], [images[j]])[0])
            hits += i // 2 in order[:k]
        return hits / N

    found = measure()
    expected = {
        "baseline_similarity": np.mean(cosine(text, x)),
        "mean_image_similarity": np.mean(cosine(mean_image, x)),
        **{f"baseline_recall_at_{k}": recall(text, k) for k in (1, 5, 10)},
        "ema/similarity_with_text[steps=3]": np.mean(cosine(drawn, text)),
        "ema/similarity_with_original_image[steps=3]": np.mean(cosine(drawn, x)),
        "ema/similarity_with_unrelated_caption[steps=3]": np.mean(cosine(drawn[partner], text)),
        "ema/difference_from_baseline_similarity[steps=3]": np.mean(cosine(drawn, text)) - np.mean(cosine(text, x)),
        **{f"ema/recall_at_{k}[steps=3]": recall(drawn, k) for k in (1, 5, 10)},
    }
    for name, value in expected.items():
        assert found[f"similarity/{name}"] == pytest.approx(value, abs=1e-6), name


def test_margins_count_an_image_once_and_have_students_interval():
    differences = torch.tensor([0.1, 0.3, 0.5, 0.8])
    place = torch.tensor([0, 0, 1, 2])  # means 0.2, 0.5, 0.8
    found = margin("m", differences, place)
    half = 4.302653 * 0.3 / np.sqrt(3)  # t of 2 degrees, standard deviation 3
    assert found == pytest.approx({"m": 0.5, "m_ci_low": 0.5 - half, "m_ci_high": 0.5 + half})


def test_recall_of_the_images_themselves_is_one_and_of_their_opposites_none():
    gallery = F.normalize(torch.randn(50, DIM, generator=torch.Generator().manual_seed(0)), dim=-1)
    place = torch.arange(50)
    assert all(hit.all() for hit in recalls(gallery, gallery, place).values())
    assert not recalls(-gallery, gallery, place)["recall_at_10"].any()


def test_drawing_says_that_it_goes_on_and_ends_when_the_run_is_asked_to_stop():
    """Other ranks take one that says nothing for lost, and a job that is about to end cannot wait."""
    ranks = Ranks(make_accelerator("fp32"))
    measure(ranks)
    ranks.stop.ask("SIGTERM")
    with pytest.raises(Abandoned):
        measure(ranks)


def test_batches_and_ranks_change_nothing():
    alone = measure()
    assert measure(batch_size=4) == pytest.approx(alone, abs=1e-6)

    def run(models, accelerator):
        return measure(accelerator, built=models, batch_size=5)

    for ranks in (2, 3):
        for found in on_ranks(ranks, run, {"ema": prior()}):
            assert found == pytest.approx(alone, abs=1e-6)


def test_every_batch_gives_a_sign_of_life():
    """Without one for so long as `dist_timeout` the ranks take each other for lost; a stop is noticed by them too."""
    beats = []
    signs = {"work": Work(), "beat": lambda: beats.append(0), "leave_if_asked": lambda: None}
    alone = SimpleNamespace(process_index=0, num_processes=1, **signs)
    measure(alone, batch_size=4, models=("ema",), eval_timesteps=(3,))
    batches = -(-N // 4)
    assert len(beats) == batches + 1 + batches  # reading the split, the training set, drawing


def test_every_knob_changes_the_measurement(tmp_path):
    plain = measure()
    for change in (
        {"name": "other"},
        {"models": ("online",)},
        {"split": "test"},
        {"max_samples": 9},
        {"eval_timesteps": (5,)},
        {"candidates": 1},
        {"seed": 1},
    ):
        assert measure(**change) != plain, change
    assert SimilarityConfig().every != SimilarityConfig(every={"steps": 3}).every
    measure(place=tmp_path)
    report = json.loads((tmp_path / f"similarity_{NOW.global_step:08d}.json").read_text())
    assert report["metrics"] == plain


def test_data_without_comparable_texts_are_refused():
    parts = data()
    parts.spec = Spec(x_shape=(DIM,), cond_shapes={"text_encodings": (3, 4)})
    with pytest.raises(ConfigError, match=naming("data.text", "'similarity'", "(6,)", "{'text_encodings': (3, 4)}")):
        measure(parts=parts)
    with pytest.raises(ConfigError, match=naming("data.split", "'similarity'", "2 samples", 1)):
        measure(parts=data(1))
    with pytest.raises(ValueError, match=naming("eval_timesteps", "[3, 3]")):
        SimilarityConfig(eval_timesteps=(3, 3))


def test_images_of_any_length_count_alike():
    parts, lengths = data(), torch.linspace(0.1, 10, 40)[:, None]
    parts.train.x = parts.train.x * lengths
    parts.val.x, parts.val.text = parts.val.x * lengths[:N], parts.val.text * lengths[:N].flip(0)
    found, plain = measure(parts=parts), measure()
    for name in ("baseline_similarity", "mean_image_similarity"):
        assert found[f"similarity/{name}"] == pytest.approx(plain[f"similarity/{name}"], abs=1e-6)


def test_one_sample_has_no_unrelated_caption_so_two_are_measured():
    assert measure(max_samples=1) == measure(max_samples=2) != measure(max_samples=3)


def test_a_margin_ends_at_what_a_difference_of_cosines_can_be():
    found = margin("m", torch.tensor([1.9, -1.9]), torch.tensor([0, 1]))
    assert (found["m_ci_low"], found["m_ci_high"]) == (-2, 2)
