"""Models of the package transformers: ours under their names is ours in its numbers, and what decays
there decays here."""

import jax
import numpy as np
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.benchmarks import torch_models
from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.models.attention.positions import MAX_DISTANCE, buckets
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling

TOKENS = 12
HEADS = 2


def small_config(positions):
    """A Transformer of 2 layers with BERT's layers around them."""
    config = config_lib.default(block="transformer")
    config.model.update(layers=2, length=TOKENS, d_model=8, d_ffn=24, heads=HEADS, vocab_size=50)
    config.model.update(positions=positions, embedding_norm=True, transform=True)
    return config


def random_params(task):
    """Parameters that hide no mistake: initial ones have norms of 1 and biases of 0."""
    random = np.random.default_rng(0)

    def draw(leaf):
        values = 0.5 * random.standard_normal(leaf.shape)
        if leaf.ndim == 1:
            values += 1
        return values.astype(np.float32)

    return jax.tree.map(draw, task.shapes())


@pytest.mark.parametrize("positions", ["absolute", "relative"])
@pytest.mark.parametrize("length", [TOKENS, TOKENS - 5])
def test_logits_are_ours(transformers, positions, length):
    import torch

    config = small_config(positions)
    task = MaskedLanguageModeling(config)
    params = random_params(task)
    random = np.random.default_rng(1)
    tokens = random.integers(0, 50, (3, length))
    places = random.integers(0, length, (3, 4))
    ours = np.asarray(task.apply(params, tokens, places))
    model = torch_models.prenorm(config, params)
    with torch.no_grad():
        theirs = model.logits(torch.tensor(tokens), torch.tensor(places)).numpy()
    assert ours.shape == (3, 4, 50)
    assert ours.std() > 0.1
    np.testing.assert_allclose(theirs, ours, atol=2e-5 * np.abs(ours).max())


@pytest.mark.parametrize("positions", ["absolute", "relative"])
def test_what_trains_and_decays(transformers, positions):
    """Every parameter of ours, once; decay by what our model says of it; the factor on relative
    biases alone."""
    config = small_config(positions)
    task = MaskedLanguageModeling(config)
    groups = torch_models.prenorm(config, random_params(task)).groups(0.01, 8.0)
    count = {}
    for group in groups:
        size = sum(parameter.numel() for parameter in group["params"])
        count[group["weight_decay"], group["factor"]] = size
    expected = {}
    metadata = task.param_metadata()
    for path, leaf in jax.tree_util.tree_leaves_with_path(task.shapes()):
        name = path_name(path)
        decay = 0.01 if metadata[name].decayed else 0.0
        factor = 8.0 if "relative" in name else 1.0
        expected[decay, factor] = expected.get((decay, factor), 0) + leaf.size
    assert count == expected
    biases = 2 * HEADS * (2 * TOKENS - 1) if positions == "relative" else 0
    assert expected.get((0.0, 8.0), 0) == biases


@pytest.mark.parametrize("make", [torch_models.bert, torch_models.mpnet])
def test_the_others_have_our_sizes(transformers, make):
    """Counts by hand; the embeddings that ours lacks are zero and stay so; each token's embedding
    trains."""
    import torch

    config = small_config("absolute" if make is torch_models.bert else "relative")
    made = make(config)
    d = 8
    f = 24
    v = 50
    norm = 2 * d
    linear = d * d + d
    feed_forward = 2 * d * f + f + d
    layers = 2 * (4 * linear + 2 * norm + feed_forward)
    around = v * d + norm + linear + norm + v
    positions = TOKENS * d if make is torch_models.bert else 32 * HEADS
    sizes = []
    for group in made.groups(0.01, 1.0):
        sizes += [parameter.numel() for parameter in group["params"]]
    assert sum(sizes) == layers + around + positions
    tokens = torch.arange(TOKENS)[None]
    made.encode(tokens).square().sum().backward()
    gradient = made.model.get_input_embeddings().weight.grad
    assert (gradient[:TOKENS].abs().sum(1) > 0).all()
    assert not gradient[TOKENS:].any()
    held = [p for _, p in made.model.named_parameters() if not p.requires_grad]
    assert len(held) == 1
    assert not held[0].any()
    config.seed = 1
    first = made.model.get_input_embeddings().weight
    other = make(config).model.get_input_embeddings().weight
    assert not (first == other).all()
    assert 0.01 < other.std() < 0.03  # BERT's 0.02


def test_buckets_of_relative_positions_are_mpnets(transformers):
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    offsets = np.arange(-400, 401)
    theirs = MPNetEncoder.relative_position_bucket(torch.tensor(offsets), 32, MAX_DISTANCE)
    np.testing.assert_array_equal(buckets(offsets, 32), theirs.numpy())
