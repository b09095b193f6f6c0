"""Models of the package transformers: the copy of our model computes the same logits, and decays the
same parameters."""

import collections

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as config_lib
from gmlp_flax.benchmarks import torch_models
from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.models.attention.positions import MAX_DISTANCE, buckets
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling

TOKENS = 12
HEADS = 2


def small_config(positions):
    """A Transformer of 2 layers with BERT's embedding norm and transform."""
    config = config_lib.default(block="transformer")
    config.model.update(layers=2, length=TOKENS, d_model=8, d_ffn=24, heads=HEADS, vocab_size=50)
    config.model.update(positions=positions, embedding_norm=True, transform=True)
    return config


def random_params(task):
    """Random parameters. Initial ones, with scales of 1 and biases of 0, would hide errors."""
    random = np.random.default_rng(0)

    def draw(leaf):
        values = 0.5 * random.standard_normal(leaf.shape)
        if leaf.ndim == 1:
            values += 1
        return values.astype(np.float32)

    return jax.tree.map(draw, task.shapes())


@pytest.mark.parametrize("positions", ["absolute", "relative"])
@pytest.mark.parametrize("length", [TOKENS, TOKENS - 5])
def test_logits_equal_ours(transformers, positions, length):
    import torch

    config = small_config(positions)
    task = MaskedLanguageModeling(config)
    params = random_params(task)
    random = np.random.default_rng(1)
    tokens = random.integers(0, 50, (3, length))
    positions_to_predict = random.integers(0, length, (3, 4))
    logits = task.apply(params, tokens, positions_to_predict)
    ours = np.asarray(logits)
    model = torch_models.prenorm(config, params)
    with torch.no_grad():
        token_tensor = torch.tensor(tokens)
        theirs = model.logits(token_tensor, torch.tensor(positions_to_predict))
    assert ours.shape == (3, 4, 50)
    assert ours.std() > 0.1
    tolerance = 2e-5 * np.abs(ours).max()
    assert_allclose(theirs.numpy(), ours, atol=tolerance)


def sizes_by_decay_and_factor(groups):
    """(weight decay, learning rate multiplier) -> the number of parameters."""
    sizes = collections.Counter()
    for group in groups:
        case = group["weight_decay"], group["factor"]
        sizes[case] += sum(parameter.numel() for parameter in group["params"])
    return sizes


@pytest.mark.parametrize("positions", ["absolute", "relative"])
def test_groups_have_our_weight_decay_and_multiplier(transformers, positions):
    """The multiplier applies to relative biases."""
    config = small_config(positions)
    task = MaskedLanguageModeling(config)
    model = torch_models.prenorm(config, random_params(task))
    groups = model.groups(0.01, 8.0)
    expected = collections.Counter()
    metadata = task.param_metadata()
    leaves = jax.tree_util.tree_leaves_with_path(task.shapes())
    for path, leaf in leaves:
        name = path_name(path)
        decay = 0.01 if metadata[name].decayed else 0.0
        factor = 8.0 if "relative" in name else 1.0
        expected[decay, factor] += leaf.size
    assert sizes_by_decay_and_factor(groups) == expected
    biases = 2 * HEADS * (2 * TOKENS - 1) if positions == "relative" else 0
    assert expected[0.0, 8.0] == biases


def published_config(make):
    """A config with the positions of BERT or MPNet."""
    return small_config("absolute" if make is torch_models.bert else "relative")


PUBLISHED = pytest.mark.parametrize("make", [torch_models.bert, torch_models.mpnet])


@PUBLISHED
def test_bert_and_mpnet_have_our_sizes(transformers, make):
    model = make(published_config(make))
    d = 8
    f = 24
    v = 50
    norm = 2 * d
    linear = d * d + d
    feed_forward = 2 * d * f + f + d
    norms = 2 * norm
    layers = 2 * (4 * linear + norms + feed_forward)
    embedding = v * d + norm
    output = linear + norm + v
    embedding_and_head = embedding + output
    positions = TOKENS * d if make is torch_models.bert else 32 * HEADS
    sizes = sizes_by_decay_and_factor(model.groups(0.01, 1.0))
    expected = layers + embedding_and_head + positions
    assert sizes.total() == expected


@PUBLISHED
def test_embeddings_of_all_tokens_are_trained(transformers, make):
    import torch

    made = make(published_config(make))
    tokens = torch.arange(TOKENS)[None]
    loss = made.encode(tokens).square().sum()
    loss.backward()
    gradient = made.model.get_input_embeddings().weight.grad
    sums = gradient[:TOKENS].abs().sum(1)
    assert (sums > 0).all()
    assert not gradient[TOKENS:].any()


@PUBLISHED
def test_embeddings_that_our_model_does_not_have_are_fixed_at_zero(transformers, make):
    model = make(published_config(make)).model
    [fixed] = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    assert not fixed.any()


@PUBLISHED
def test_seeds_give_different_parameters(transformers, make):
    config = published_config(make)
    first = make(config).model.get_input_embeddings().weight
    config.seed = 1
    second = make(config).model.get_input_embeddings().weight
    assert not (first == second).all()
    assert 0.01 < second.std() < 0.03  # BERT's 0.02


def test_buckets_of_relative_positions_equal_mpnets(transformers):
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    offsets = np.arange(-400, 401)
    theirs = MPNetEncoder.relative_position_bucket(torch.tensor(offsets), 32, MAX_DISTANCE)
    assert_array_equal(buckets(offsets, 32), theirs.numpy())
