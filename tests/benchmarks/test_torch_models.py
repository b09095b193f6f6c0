"""Models of the package transformers: ours by their names is ours in its numbers, and what decays there decays here."""

import jax
import numpy as np
import pytest

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks import torch_models
from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.models import attention

N, HEADS = 12, 2


def small(positions):
    """A Transformer of 2 layers with BERT's layers around them."""
    options = config.default(block="transformer")
    options.model.update(layers=2, length=N, d_model=8, d_ffn=24, heads=HEADS, vocab_size=50, positions=positions)
    options.model.update(embedding_norm=True, transform=True)
    return options


def random_params(task):
    """Parameters that hide no mistake: initial ones have norms of 1 and biases of 0."""
    rng = np.random.default_rng(0)
    draw = lambda x: (0.5 * rng.standard_normal(x.shape) + (x.ndim == 1)).astype(np.float32)  # noqa: E731
    return jax.tree.map(draw, task.shapes())


@pytest.mark.parametrize("positions", ["absolute", "relative"])
@pytest.mark.parametrize("length", [N, N - 5])
def test_logits_are_ours(transformers, positions, length):
    import torch

    options = small(positions)
    task = tasks.find(options.task).without_data(options)
    params = random_params(task)
    rng = np.random.default_rng(1)
    tokens, places = rng.integers(0, 50, (3, length)), rng.integers(0, length, (3, 4))
    ours = np.asarray(task.apply(params, tokens, places))
    with torch.no_grad():
        theirs = torch_models.prenorm(options, params).logits(torch.tensor(tokens), torch.tensor(places)).numpy()
    assert ours.shape == (3, 4, 50) and ours.std() > 0.1
    np.testing.assert_allclose(theirs, ours, atol=2e-5 * np.abs(ours).max())


@pytest.mark.parametrize("positions", ["absolute", "relative"])
def test_what_trains_and_decays_is_what_trains_and_decays_here(transformers, positions):
    """Every parameter of ours, once; decay by the facts that our model states; the factor on relative biases alone."""
    options = small(positions)
    task = tasks.find(options.task).without_data(options)
    groups = torch_models.prenorm(options, random_params(task)).groups(0.01, 8.0)
    count = {(group["weight_decay"], group["factor"]): sum(p.numel() for p in group["params"]) for group in groups}
    expected = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(task.shapes()):
        name = path_name(path)
        key = 0.01 * task.param_metadata()[name].decayed, 8.0 if "relative" in name else 1.0
        expected[key] = expected.get(key, 0) + leaf.size
    assert count == expected
    assert expected.get((0.0, 8.0), 0) == (2 * HEADS * (2 * N - 1) if positions == "relative" else 0)


@pytest.mark.parametrize("make", [torch_models.bert, torch_models.mpnet])
def test_the_others_have_our_sizes_and_no_frozen_token(transformers, make):
    """Counts by hand; the embeddings that ours lacks are zero and stay so; each token's embedding trains."""
    import torch

    options = small("absolute" if make is torch_models.bert else "relative")
    made = make(options)
    d, f, v = 8, 24, 50
    layers = 2 * (4 * (d * d + d) + 2 * 2 * d + 2 * d * f + f + d)
    around = v * d + 2 * d + d * d + d + 2 * d + v
    positions = N * d if make is torch_models.bert else 32 * HEADS
    trains = [parameter for group in made.groups(0.01, 1.0) for parameter in group["params"]]
    assert sum(parameter.numel() for parameter in trains) == layers + around + positions
    tokens = torch.arange(N)[None]
    made.encode(tokens).square().sum().backward()
    gradient = made.model.get_input_embeddings().weight.grad
    assert (gradient[:N].abs().sum(1) > 0).all() and not gradient[N:].any()
    held = [p for _, p in made.model.named_parameters() if not p.requires_grad]
    assert len(held) == 1 and not held[0].any()
    options.seed = 1
    first, other = (each.model.get_input_embeddings().weight for each in (made, make(options)))
    assert not (first == other).all() and 0.01 < other.std() < 0.03  # BERT's 0.02


def test_buckets_of_relative_positions_are_mpnets(transformers):
    """T5's rule, written by others."""
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    offsets = np.arange(-400, 401)
    theirs = MPNetEncoder.relative_position_bucket(torch.tensor(offsets), 32, attention.MAX_DISTANCE).numpy()
    np.testing.assert_array_equal(attention.buckets(offsets, 32), theirs)
