"""A prior's border: unit embeddings out, texts of any length in; what training withholds, and what is clamped."""

import json

import pytest
import torch
import torch.nn.functional as F

from dp_prior.config import ConfigError
from dp_prior.tasks.prior import PriorConfig
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming

DIM = 6
SPEC = Spec(x_shape=(DIM,), cond_shapes={"text": (DIM,)})
BOTH = Spec(x_shape=(DIM,), cond_shapes={"text": (DIM,), "text_encodings": (3, 4)})
SMALL = {
    "backbone": {"embed_dim": 16, "n_layers": 1, "n_heads": 2},
    "diffusion": {"schedule": {"type": "cosine", "steps": 20}},
    "sampler": {"type": "ddim", "steps": 3},
}


def config(**change):
    merged = {name: {**value, **change.pop(name, {})} for name, value in SMALL.items()}
    return PriorConfig.from_json(json.dumps({**merged, **change}))


def build(spec=SPEC, **change):
    torch.manual_seed(0)
    return config(**change).create(spec).eval()


def batch(n=8, spec=SPEC):
    torch.manual_seed(1)
    cond = {key: torch.randn(n, *shape) for key, shape in spec.cond_shapes.items()}
    x = F.normalize(torch.randn(n, DIM), dim=-1)
    ids = torch.arange(n)
    return Batch(x=x, cond=cond, mask=torch.ones(n, dtype=torch.bool), ids=ids, positions=ids)


def rows(n=8, seed=0):
    return Randomness.from_counts(seed, "test", torch.arange(n))


@pytest.mark.slow
@every(
    dtype=[torch.bfloat16, torch.float16, torch.float64],
    backbone=[
        {"type": "prior_transformer", "n_text_tokens": 2, "embed_dim": 16},
        {"type": "multi_query_prior", "n_text_tokens": 2},
        {"type": "multi_query_prior", "time_table": 20},
    ],
    encodings=[False, True],
)
def test_weights_of_any_precision_draw(dtype, backbone, encodings):
    """`multi_query_prior` multiplied weights of half precision by features of the time in float32, and failed."""
    spec = Spec(x_shape=(DIM,), cond_shapes={"text": (DIM,), **({"text_encodings": (3, DIM)} if encodings else {})})
    task = {**SMALL, "backbone": {"n_layers": 1, "n_heads": 2, **backbone}}
    torch.manual_seed(0)
    prior = PriorConfig.from_json(json.dumps(task)).create(spec).eval()
    cond = batch(spec=spec).cond
    expected = prior.draw(cond, rows())
    prior.cast_weights(dtype)
    found = prior.draw(cond, rows())
    assert found.dtype == torch.float32 and F.cosine_similarity(found, expected).median() > 0.95


def encodings_of(given):
    return given.cond.get("text_encodings")


@every(sampler=["ddpm", "ddim", "dpm_solver"], objective=["x0", "eps", "v"], spec=[SPEC, BOTH])
def test_every_objective_and_sampler_gives_unit_embeddings(spec, objective, sampler):
    prior = build(
        spec, diffusion={"objective": {"type": objective}, "self_condition": 0.5}, sampler={"type": sampler, "steps": 4}
    )
    given = batch(spec=spec)
    loss = prior.train()(given, rows())
    loss.total.backward()
    assert all(parameter.grad is not None for name, parameter in prior.named_parameters() if "null" not in name)
    prior.eval()
    found = prior.predict(given.cond["text"], text_encodings=encodings_of(given))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(8))


@pytest.mark.parametrize("change", [{"x_shape": ()}, {"cond_shapes": {"text": ()}}, {"cond_shapes": {"text": (2, 6)}}])
def test_data_of_other_shapes_are_refused(change):
    with pytest.raises(ConfigError, match=naming("'text' (D,)", "'text_encodings' (n, D)")):
        build(SPEC.model_copy(update=change))


def test_the_length_of_the_data_means_nothing_and_the_scale_is_the_root_of_the_dimension():
    prior, given = build(), batch()
    longer = Batch(x=3 * given.x, cond=given.cond, mask=given.mask, ids=given.ids)
    assert torch.allclose(prior(given, rows()).per_sample, prior(longer, rows()).per_sample)
    assert torch.allclose(prior.normalizer.normalize("x", given.x).norm(dim=1), torch.tensor(DIM**0.5))
    assert torch.allclose(prior.normalizer.unnormalize("x", prior.normalizer.normalize("x", given.x)), given.x)


def test_rows_do_not_depend_on_their_neighbours():
    prior, given = build(), batch()
    whole = prior.predict(given.cond["text"], random=rows())
    for i in (0, 5):
        alone = prior.predict(given.cond["text"][i : i + 1], random=rows()[i : i + 1])
        torch.testing.assert_close(alone, whole[i : i + 1])
    assert torch.equal(prior.predict(given.cond["text"]), prior.predict(given.cond["text"]))


def test_of_candidates_the_one_most_like_the_text_is_kept():
    prior, given = build(), batch()
    text, random = given.cond["text"], rows()
    drawn = torch.stack([prior.sample(given.cond, random.stream("candidate", i)) for i in range(5)])
    likeness = F.cosine_similarity(drawn, text[None], dim=-1)
    best = prior.predict(text, candidates=5, random=random)
    assert torch.equal(best, drawn[likeness.argmax(0), torch.arange(8)])
    assert torch.equal(prior.predict(text, candidates=1, random=random), drawn[0])
    assert (likeness.argmax(0) > 0).any()


def test_text_is_withheld_whole_and_the_noisy_embedding_never():
    prior, given = build(BOTH, text_dropout=0.5), batch(400, BOTH)
    tokens = prior.encode(given.cond, rows(400))
    null = prior.encode(given.cond, keep=False)
    assert torch.equal(null, null[:1].expand_as(null))
    lost = (tokens == null).all(-1)  # (B, N)
    assert (lost.all(1) | ~lost.any(1)).all() and 150 < lost.all(1).sum() < 250
    always = build(BOTH, text_dropout=1.0, diffusion={"self_condition": 0.5}, image_dropout=1.0).train()
    assert always(given, rows(400)).per_sample.std() > 0
    other = Batch(x=given.x.flip(1), cond=given.cond, mask=given.mask, ids=given.ids)
    assert (always(other, rows(400)).per_sample != always(given, rows(400)).per_sample).float().mean() > 0.9


def test_an_estimate_is_withheld_by_its_own_chance():
    seen = []

    def record(prior):
        forward = prior.backbone.forward

        def recording(x_t, t, cond):
            seen.append((x_t[:, DIM:] == 0).all(1))
            return forward(x_t, t, cond)

        prior.backbone.forward = recording
        return prior.train()

    prior = record(build(diffusion={"self_condition": 1.0}, image_dropout=0.5))
    prior(batch(400), rows(400))
    assert seen[0].all() and 150 < seen[1].sum() < 250  # no estimate yet; then half of them
    seen.clear()
    prior.eval()(batch(400), rows(400))
    assert seen[0].all() and not seen[1].any()


def test_guidance_mixes_with_the_prior_that_sees_no_text():
    given = batch()

    def draw(scale):
        prior = build(diffusion={"guidance": {"scale": scale}}, candidates=1)
        return prior.predict(given.cond["text"], random=rows())

    other = build(diffusion={"guidance": {"scale": 0.0}}, candidates=1)
    with torch.no_grad():  # all texts are null: the condition has no part in it
        assert torch.equal(draw(0.0), other.predict(torch.zeros(8, DIM), random=rows()))
    assert torch.equal(draw(1.0), build(candidates=1).predict(given.cond["text"], random=rows()))
    assert not torch.allclose(draw(3.0), draw(1.0))


def test_clamps_bring_to_the_length_of_an_embedding():
    radius = torch.tensor(DIM**0.5)
    assert torch.allclose(build(clamp_start=True).start(torch.randn(9, DIM)).norm(dim=1), radius)
    noise = torch.randn(9, DIM)
    assert torch.equal(build().start(noise), noise)
    prior, given = build(clamp_training=True), batch()
    x_t, t = torch.randn(8, DIM), torch.zeros(8, dtype=torch.int64)
    cond = prior.encode(given.cond)
    assert torch.allclose(prior.network(cond, in_loss=True)(x_t, t).norm(dim=1), radius)
    assert torch.equal(prior.network(cond)(x_t, t), prior.backbone(x_t, t, cond))
    free = build(clamp_end=False, diffusion={"clip": None}).predict(given.cond["text"])
    assert not torch.allclose(free.norm(dim=1), torch.ones(8), atol=1e-3)


def test_every_field_changes_the_prior():
    given = batch(64, BOTH)

    def shown(**change):
        prior = build(BOTH, **change)
        drawn = prior.predict(given.cond["text"], text_encodings=encodings_of(given), random=rows(64))
        conditioned = {"self_condition": True} if prior.process.config.self_condition else {}
        return drawn.tolist(), prior.train()(given, rows(64), **conditioned).per_sample.tolist()

    estimates = {"diffusion": {"self_condition": 1.0}}
    plain = shown()
    for name, change in {
        "backbone": {"backbone": {"n_text_tokens": 2}},
        "diffusion": {"diffusion": {"objective": {"type": "v"}}},
        "sampler": {"sampler": {"steps": 5}},
        "embedding_scale": {"embedding_scale": 3.0, "diffusion": {"clip": {"type": "l2norm", "radius": 3.0}}},
        "text_dropout": {"text_dropout": 0.7},
        "clamp_start": {"clamp_start": True},
        "clamp_training": {"clamp_training": True},
        "clamp_end": {"clamp_end": False, "diffusion": {"clip": None}},
        "candidates": {"candidates": 5},
    }.items():
        assert shown(**change) != plain, name
    assert shown(**estimates, image_dropout=0.5) != shown(**estimates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"diffusion": {"guidance": {"scale": 2.0}}, "text_dropout": 0.0}, ("diffusion.guidance", "text_dropout", 0.1)),
        ({"image_dropout": 0.1}, ("image_dropout", "diffusion.self_condition", 0)),
        (
            {"clamp_training": True, "diffusion": {"objective": {"type": "eps"}}},
            ("clamp_training", "diffusion.objective", "'eps'"),
        ),
        ({"diffusion": {"clip": {"type": "bounds"}}}, ("diffusion.clip", "'bounds'", "'l2norm'")),
        ({"embedding_scale": 2.0}, ("diffusion.clip.radius", "None", "embedding_scale", "2.0")),
        ({"sampler": {"steps": 21}}, ("sampler", "diffusion.schedule")),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(change, message):
    with pytest.raises(ConfigError, match=naming(*message)):
        config(**change)


@pytest.mark.parametrize("spec", [SPEC, BOTH], ids=["embedding", "both"])
def test_the_memory_of_a_prediction_is_bounded_and_its_rows_stay(spec, monkeypatch):
    """At any bound: no more rows in the network, and the same embeddings but for rounding of products."""
    prior, given, most = build(spec), batch(7, spec), []
    draw = type(prior).sample
    monkeypatch.setattr(type(prior), "sample", lambda self, cond, random, how: (
        most.append(len(random)), draw(self, cond, random, how))[1])  # fmt: skip
    how = {"text_encodings": encodings_of(given), "random": rows(7), "candidates": 2 if spec is SPEC else 1}
    expected = prior.predict(given.cond["text"], **how)
    for size in (1, 3, 7, 100):
        most.clear()
        torch.testing.assert_close(
            prior.predict(given.cond["text"], batch_size=size, **how), expected, atol=1e-5, rtol=0
        )
        assert max(most) == min(size, 7)
    for size in (0, -2):
        with pytest.raises(ValueError, match=naming("batch_size", size, 1, "None")):
            prior.predict(given.cond["text"], batch_size=size, **how)


def test_wrong_inputs_are_refused():
    encodings = Spec(x_shape=(DIM,), cond_shapes={"text_encodings": (3, 4)})
    with pytest.raises(ConfigError, match=naming("task.candidates", 2, "none", 1)):
        build(encodings)
    narrow = Spec(x_shape=(DIM,), cond_shapes={"text": (4,)})
    with pytest.raises(ConfigError, match=naming("task.candidates", 4, 6, 1)):
        build(narrow)
    with pytest.raises(
        ConfigError, match=naming("task.backbone", "'multi_query_prior'", "6 numbers", "'text_encodings': 4")
    ):
        PriorConfig.from_json(json.dumps({**SMALL, "backbone": {"type": "multi_query_prior"}})).create(BOTH)
    prior = build(encodings, candidates=1)
    assert prior.predict(text_encodings=torch.randn(2, 3, 4)).shape == (2, DIM)
    with pytest.raises(ValueError, match=naming("candidates", 2, 1)):
        prior.predict(text_encodings=torch.randn(2, 3, 4), candidates=2)
    with pytest.raises(ValueError, match=naming("{'text_embed': (6,)}", "{'text_embed': (5,)}")):
        build().predict(torch.randn(2, 5))
    with pytest.raises(ValueError, match=naming("text_embed", 1, "[2]")):
        build().predict(torch.randn(2, DIM).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(torch.nan)))
    with pytest.raises(ValueError, match=naming("{'text_embed': (6,)}", "nothing")):
        build().predict()
    with pytest.raises(ValueError, match=naming("{'text_embed': 0}")):
        build().predict(torch.zeros(0, DIM))
    with pytest.raises(ValueError, match=naming("{'text_embed': 2, 'text_encodings': 3}")):
        build(BOTH).predict(torch.randn(2, DIM), text_encodings=torch.randn(3, 3, 4))
    with pytest.raises(ValueError, match=naming("random", "1 rows", "2 texts")):
        build().predict(torch.randn(2, DIM), random=rows(1))


def test_texts_may_be_arrays():
    prior, texts = build().eval(), torch.randn(2, DIM)
    assert torch.equal(prior.predict(texts.numpy()), prior.predict(texts))
