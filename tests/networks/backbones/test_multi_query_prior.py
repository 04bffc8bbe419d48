"""The network of DALLE2-pytorch's priors: equality with a version written out, guidance, every field, refused sizes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dp_prior.networks.backbones.multi_query_prior import MultiQueryPriorConfig
from dp_prior.networks.dropout import dropout_rows
from dp_prior.tensors.randomness import Randomness
from dp_prior_foreign.importers.dalle2 import EARLY_BIAS_FACTOR, rename_published
from tests.messages import naming

DIM, TEXTS, PLACES = 32, 5, 9
THEIRS = {
    "num_timesteps": 40,
    "num_time_embeds": 2,
    "num_image_embeds": 3,
    "num_text_embeds": 2,
    "max_text_len": PLACES,
    "depth": 2,
    "dim_head": 40,
    "heads": 3,
    "ff_mult": 3,
    "norm_in": True,
    "normformer": True,
}
OURS = {
    "time_table": 40,
    "n_time_tokens": 2,
    "n_image_tokens": 3,
    "n_text_tokens": 2,
    "text_tokens": PLACES,
    "n_layers": 2,
    "head_dim": 40,
    "n_heads": 3,
    "expansion": 3,
    "norm_in": True,
    "normformer": True,
}


class PlainPriorNetwork(nn.Module):
    """`DiffusionPriorNetwork` of DALLE2-pytorch with the published names of its weights, one sample at a time.

    `is_early`: that of versions up to 1.1, without cosines, dropped texts and self-conditioning.
    """

    def __init__(self, *, num_timesteps=None, num_time_embeds=1, num_image_embeds=1, num_text_embeds=1,
                 max_text_len=256, depth=1, dim_head=64, heads=8, ff_mult=4, norm_in=False, norm_out=True,
                 final_proj=True, normformer=False, rotary_emb=True, self_cond=False, is_early=False):  # fmt: skip
        super().__init__()
        self.counts = {"time": num_time_embeds, "image": num_image_embeds, "text": num_text_embeds}
        self.settings = depth, heads, dim_head, norm_in, norm_out, final_proj, normformer, rotary_emb
        self.places, self.is_early = max_text_len, is_early
        shapes = {
            "learned_query": (DIM,),
            "causal_transformer.rel_pos_bias.relative_attention_bias.weight": (32, heads),
        }
        for kind, count in self.counts.items():
            if kind != "time" and count > 1:
                shapes |= {f"to_{kind}_embeds.0.weight": (DIM * count, DIM), f"to_{kind}_embeds.0.bias": (DIM * count,)}
        out = DIM * num_time_embeds
        if num_timesteps:
            shapes["to_time_embeds.0.weight"] = (num_timesteps, out)
        else:
            for place, rows, columns in (("0.0", 2 * out, DIM), ("1.0", 2 * out, 2 * out), ("2", out, 2 * out)):
                shapes[f"to_time_embeds.0.1.net.{place}.weight"] = (rows, columns)
                shapes[f"to_time_embeds.0.1.net.{place}.bias"] = (rows,)
        if is_early:
            shapes["null_text_embed"] = (1, max_text_len, DIM)
        else:
            shapes |= {"null_text_encodings": (1, max_text_len, DIM), "null_text_embeds": (1, num_text_embeds, DIM)}
            shapes["null_image_embed"] = (1, DIM)
        inner = int(ff_mult * DIM)
        for layer in (f"causal_transformer.layers.{i}" for i in range(depth)):
            shapes |= {
                f"{layer}.0.norm.g": (DIM,),
                f"{layer}.0.null_kv": (2, dim_head),
                f"{layer}.0.to_q.weight": (heads * dim_head, DIM),
                f"{layer}.0.to_kv.weight": (2 * dim_head, DIM),
                f"{layer}.0.to_out.0.weight": (DIM, heads * dim_head),
                f"{layer}.0.to_out.1.g": (DIM,),
                f"{layer}.1.0.g": (DIM,),
                f"{layer}.1.1.weight": (2 * inner, DIM),
                f"{layer}.1.5.weight": (DIM, inner),
            }
            shapes |= {f"{layer}.1.3.g": (inner,)} if normformer else {}
            shapes |= {f"{layer}.0.rotary_emb.freqs": (min(32, dim_head) // 2,)} if rotary_emb else {}
        shapes |= {"causal_transformer.init_norm.g": (DIM,)} if norm_in else {}
        shapes |= {"causal_transformer.norm.g": (DIM,)} if norm_out else {}
        shapes |= {"causal_transformer.project_out.weight": (DIM, DIM)} if final_proj else {}
        self.weights = {name: self.drawn(name, shape) for name, shape in shapes.items()}

    def drawn(self, name, shape):
        if name.endswith(".g"):
            return 0.5 + torch.rand(shape)
        if name.endswith("freqs"):
            return 10_000.0 ** (-torch.arange(shape[0]) / shape[0])
        spread = (
            1 / EARLY_BIAS_FACTOR
            if self.is_early and "rel_pos" in name
            else shape[-1] ** -0.5
            if len(shape) == 2
            else 1
        )
        return spread * torch.randn(shape)

    def state_dict(self):
        return dict(self.weights)

    def forward(self, x_t, t, text, encodings=None, estimate=None, drops=False):
        """(B, D), (B,), (B, D), (B, n, D), (B, D) -> (B, D)."""
        rows = [[None if one is None else one[i] for one in (x_t, t, text, encodings, estimate)] for i in range(len(t))]
        return torch.stack([self.one(*row, drops and not self.is_early) for row in rows])

    def one(self, x_t, t, text, encodings, estimate, drops):
        w = self.weights
        encodings = torch.zeros(0, DIM) if encodings is None else encodings[: self.places]
        padded = w["null_text_embed" if self.is_early else "null_text_encodings"][0].clone()
        for place, token in enumerate(encodings):
            if token.any() and not drops:
                padded[place] = token
        text = w["null_text_embeds"][0] if drops else self.widened("text", text)
        image = w["null_image_embed"].expand(self.counts["image"], -1) if drops else self.widened("image", x_t)
        own = [] if estimate is None else [estimate[None]]
        x = torch.cat([padded, text, self.time(t), image, *own, w["learned_query"][None]])
        depth, *_, norm_in, norm_out, final_proj, _, _ = self.settings
        x = norm(x, w["causal_transformer.init_norm.g"]) if norm_in else x
        for layer in range(depth):
            x = x + self.attention(x, f"causal_transformer.layers.{layer}.0")
            x = x + self.feed_forward(x, f"causal_transformer.layers.{layer}.1")
        last = x[-1]
        last = norm(last / last.max(), w["causal_transformer.norm.g"]) if norm_out else last
        return w["causal_transformer.project_out.weight"] @ last if final_proj else last

    def widened(self, kind, value):
        if self.counts[kind] == 1:
            return value[None]
        weight, bias = (self.weights[f"to_{kind}_embeds.0.{part}"] for part in ("weight", "bias"))
        return (weight @ value + bias).view(-1, DIM)

    def time(self, t):
        if "to_time_embeds.0.weight" in self.weights:
            return self.weights["to_time_embeds.0.weight"][t].view(-1, DIM)
        angles = t * torch.exp(-math.log(10_000) * torch.arange(DIM // 2) / (DIM // 2 - 1))
        x = torch.cat([angles.sin(), angles.cos()])
        for place in ("0.0", "1.0", "2"):
            x = F.silu(x) if place == "2" else x if place == "0.0" else F.silu(x)
            weight, bias = (self.weights[f"to_time_embeds.0.1.net.{place}.{part}"] for part in ("weight", "bias"))
            x = weight @ x + bias
        return x.view(-1, DIM)

    def attention(self, x, place):
        w = self.weights
        _, heads, size, *_, rotary = self.settings
        x = norm(x, w[f"{place}.norm.g"])
        keys, values = (x @ w[f"{place}.to_kv.weight"].T).split(size, dim=1)
        queries = (x @ w[f"{place}.to_q.weight"].T).view(len(x), heads, size)
        found = torch.zeros(len(x), heads, size)
        turn = (lambda v, i: turned(v, i, w[f"{place}.rotary_emb.freqs"])) if rotary else (lambda v, i: v)
        null_key, null_value = w[f"{place}.null_kv"]
        turned_keys = [turn(keys[j], j) for j in range(len(x))]
        for i in range(len(x)):
            seen_keys = torch.stack([null_key, *turned_keys[: i + 1]])
            seen_values = torch.cat([null_value[None], values[: i + 1]])
            distances = [max(0, i - j) for j in range(i + 2)]
            table = w["causal_transformer.rel_pos_bias.relative_attention_bias.weight"]
            for head in range(heads):
                query = turn(queries[i, head], i)
                bias = torch.stack([table[bucket(distance), head] for distance in distances])
                if self.is_early:
                    scores = seen_keys @ query / size**0.5 + EARLY_BIAS_FACTOR * bias
                else:
                    scores = 16 * (F.normalize(seen_keys, dim=1) @ F.normalize(query, dim=0)) + bias
                found[i, head] = scores.softmax(0) @ seen_values
        return norm(found.flatten(1) @ w[f"{place}.to_out.0.weight"].T, w[f"{place}.to_out.1.g"])

    def feed_forward(self, x, place):
        w = self.weights
        features, gates = (norm(x, w[f"{place}.0.g"]) @ w[f"{place}.1.weight"].T).chunk(2, dim=1)
        hidden = features * gates * gates.sigmoid()
        hidden = norm(hidden, w[f"{place}.3.g"]) if self.settings[6] else hidden
        return hidden @ w[f"{place}.5.weight"].T


def norm(x, gain):
    centred = x - x.mean(-1, keepdim=True)
    return gain * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def turned(vector, position, frequencies):
    """Pairs of neighbours as complex numbers."""
    width = 2 * len(frequencies)
    pairs = torch.view_as_complex(vector[:width].view(-1, 2).contiguous())
    angle = position * frequencies
    return torch.cat([torch.view_as_real(pairs * torch.complex(angle.cos(), angle.sin())).flatten(), vector[width:]])


def bucket(distance):
    return distance if distance < 16 else min(31, 16 + int(math.log(distance / 16) / math.log(8) * 16))


def pair(theirs, ours, inputs=1, **kind):
    """The written version and ours, with its weights."""
    torch.manual_seed(0)
    plain = PlainPriorNetwork(**theirs, **kind)
    config = MultiQueryPriorConfig(**ours)
    encoder = config.encoder({"text": (DIM,), "text_encodings": (TEXTS, DIM)}, DIM)
    network = config.create((DIM,), encoder.cond_shape, 1, inputs)
    ours = dict(rename_published(plain.state_dict()))
    for room, module in (("backbone.", network), ("encoder.", encoder)):
        module.load_state_dict({key.removeprefix(room): one for key, one in ours.items() if key.startswith(room)})
    return plain, lambda x_t, t, cond, kept=None: network(x_t, t, encoder(cond, kept)).detach()


def given(batch=3):
    torch.manual_seed(1)
    x_t, t, text = 5 * torch.randn(batch, DIM), torch.randint(40, (batch,)), torch.randn(batch, DIM)
    encodings = torch.randn(batch, TEXTS, DIM)
    encodings[1, 3:] = 0
    return x_t, t, text, encodings


@pytest.mark.parametrize(
    ("theirs", "ours", "is_early"),
    [
        (THEIRS, OURS, False),
        (THEIRS, OURS | {"cosine": False}, True),
        (
            {"max_text_len": 4, "dim_head": 16, "heads": 2, "norm_out": False, "final_proj": False,
             "rotary_emb": False},
            {"text_tokens": 4, "head_dim": 16, "n_heads": 2, "norm_out": False, "final_proj": False, "rotary": False,
             "n_layers": 1},
            False,
        ),
        (
            {"max_text_len": 30, "dim_head": 8, "heads": 2},
            {"text_tokens": 30, "head_dim": 8, "n_heads": 2, "n_layers": 1},
            False,
        ),
    ],
)  # fmt: skip
def test_equals_a_version_written_out(theirs, ours, is_early):
    plain, network = pair(theirs, ours, is_early=is_early)
    x_t, t, text, encodings = given()
    cond = {"text": text, "text_encodings": encodings}
    expected = plain(x_t, t, text, encodings)
    torch.testing.assert_close(network(x_t, t, cond), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network(x_t, t, {"text": text}), plain(x_t, t, text), rtol=1e-4, atol=1e-5)
    if not is_early:
        dropped = network(x_t, t, cond, dict.fromkeys(cond, torch.zeros(len(t))))
        torch.testing.assert_close(dropped, plain(x_t, t, text, encodings, drops=True), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(dropped, expected, atol=0.05)


def test_reads_its_own_estimate_before_the_query():
    plain, network = pair(THEIRS, OURS, inputs=2, self_cond=True)
    x_t, t, text, encodings = given()
    estimate = torch.randn(len(t), DIM)
    found = network(torch.cat([x_t, estimate], 1), t, {"text": text, "text_encodings": encodings})
    torch.testing.assert_close(found, plain(x_t, t, text, encodings, estimate), rtol=1e-4, atol=1e-5)


def test_farther_than_the_farthest_distance_all_are_one():
    buckets = MultiQueryPriorConfig(text_tokens=200).create((DIM,), (202, DIM)).buckets
    expected = [[bucket(max(0, i - j)) for j in range(len(buckets) + 1)] for i in range(len(buckets))]
    assert buckets.tolist() == expected and buckets.max() == 31


def test_every_field_changes_the_network():
    x_t, t, text, encodings = given()

    def shown(**change):
        torch.manual_seed(0)
        config = MultiQueryPriorConfig(**{"n_layers": 2, "n_heads": 2, "head_dim": 8, "text_tokens": 6, **change})
        encoder = config.encoder({"text": (DIM,), "text_encodings": (TEXTS, DIM)}, DIM)
        network = config.create((DIM,), encoder.cond_shape).train()
        size = sum(one.numel() for module in (encoder, network) for one in module.parameters())
        with dropout_rows(network, Randomness(torch.arange(len(x_t)))):
            return size, network(x_t, t, encoder({"text": text, "text_encodings": encodings})).tolist()

    changes = {
        "n_layers": 1,
        "n_heads": 4,
        "head_dim": 16,
        "expansion": 2.5,
        "text_tokens": 7,
        "n_time_tokens": 2,
        "n_image_tokens": 2,
        "n_text_tokens": 2,
        "time_table": 40,
        "cosine": False,
        "rotary": False,
        "norm_in": True,
        "norm_out": False,
        "final_proj": False,
        "normformer": True,
        "attention_dropout": 0.5,
        "dropout": 0.5,
    }
    assert {*changes, "type"} == set(MultiQueryPriorConfig.model_fields)
    for name, value in changes.items():
        assert shown(**{name: value}) != shown(), name


def test_what_does_not_fit_is_refused():
    config = MultiQueryPriorConfig(time_table=10)
    with pytest.raises(ValueError, match=naming(32, "'text': 16", "embeddings")):
        config.encoder({"text": (16,)}, 32)
    with pytest.raises(ValueError, match=naming("text embeddings", "text_encodings")):
        config.encoder({"text_encodings": (5, 32)}, 32)
    with pytest.raises(ValueError, match=naming("variance", "diffusion.variance")):
        config.create((32,), (4, 32), 2)
    for dim in (1, 2, 7):  # sines of an odd number of features were a RuntimeError of torch in the first step
        with pytest.raises(ValueError, match=naming(f"{dim} numbers", "multi_query_prior", "time_table")):
            MultiQueryPriorConfig(n_layers=1).create((dim,), (4, dim))
        network = MultiQueryPriorConfig(n_layers=1, time_table=10).create((dim,), (4, dim))
        assert network(torch.zeros(3, dim), torch.arange(3), torch.zeros(3, 4, dim)).shape == (3, dim)
    assert [*config.timestep_faults(10)] == [] and "11" in next(config.timestep_faults(11))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_query_is_divided_by_its_largest_feature_before_the_last_norm(sign):
    """Where all features are negative, that turns the sign."""

    class Given(nn.Module):
        def forward(self, x, bias, angles):
            return sign * (1e-4 * torch.arange(1.0, DIM + 1)).expand_as(x)

    network = MultiQueryPriorConfig(n_layers=1, final_proj=False).create((DIM,), (4, DIM))
    network.layers = nn.ModuleList([Given()])
    found = network(torch.zeros(2, DIM), torch.zeros(2).long(), torch.zeros(2, 4, DIM)).detach()
    features = sign * torch.arange(1.0, DIM + 1)
    expected = norm(features / features.max(), torch.ones(DIM))
    torch.testing.assert_close(found, expected.expand(2, -1))
    assert bool(found[0, 0] < found[0, -1])
