"""The synthetic tasks: only answers are scored, and a model that can look back learns them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as config_lib
from gmlp_flax.data.synthetic.kinds import KINDS
from gmlp_flax.data.synthetic.recipe import IGNORED
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks
from gmlp_flax.tasks.synthetic import Synthetic, SyntheticData
from gmlp_flax.training import loop


def tiny(task="mqar", block="gmlp", **model):
    """A config of two narrow layers."""
    config = config_lib.default(task="synthetic", block=block)
    sizes = {"length": 64, "vocab_size": 48, "layers": 2, "d_model": 16, "d_ffn": 32}
    config.model.update(sizes | model)
    config.synthetic.update(task=task, pairs=4, examples=256, heldout_examples=40)
    config.batch_size = 8
    return config


def batch_of(config, role="heldout", count=8):
    """The first examples of a role."""
    examples = SyntheticData(config).examples(role)
    tokens = []
    targets = []
    for index in range(count):
        example = examples[index]
        tokens.append(example["tokens"])
        targets.append(example["targets"])
    return {
        "tokens": jnp.array(tokens),
        "targets": jnp.array(targets),
        "weight": jnp.ones(count),
    }


def slow_sums(task, params, batch):
    """The loss and the hits from all logits, one position at a time."""
    tokens = batch["tokens"]
    _, length = tokens.shape
    if task.kind.compresses:
        logits = task.apply(params, tokens)
    else:
        positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        logits = task.apply(params, tokens, positions)
    log_shares = jax.nn.log_softmax(logits)
    loss = 0.0
    hits = 0
    count = 0
    for index in np.ndindex(tokens.shape):
        target = int(batch["targets"][index])
        if target != IGNORED:
            loss -= float(log_shares[index][target])
            predicted = int(logits[index].argmax())
            hits += predicted == target
            count += 1
    return loss, hits, count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_only_answers_are_scored(kind, causal):
    config = tiny(kind, causal=causal)
    task = Synthetic(config)
    params = task.init(jax.random.key(0))
    batch = batch_of(config)
    sums, outputs = task.evaluate(params, batch)
    loss, hits, count = slow_sums(task, params, batch)
    total, weight = sums["loss"]
    total_hits, _ = sums["accuracy"]
    examples, _ = sums["examples"]
    assert_allclose(float(total), loss, rtol=1e-4)
    assert float(weight) == count
    assert float(total_hits) == hits
    assert float(examples) == 8
    assert outputs == {}


@pytest.mark.slow
def test_padding_copies_of_a_batch_do_not_count():
    config = tiny()
    task = Synthetic(config)
    params = task.init(jax.random.key(0))
    batch = batch_of(config)
    batch["weight"] = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    sums, _ = task.evaluate(params, batch)
    first = {name: array[:5] for name, array in batch.items()}
    expected, _ = task.evaluate(params, first)
    for name in ("loss", "accuracy", "examples"):
        assert_allclose(sums[name], expected[name], rtol=1e-5)


@pytest.mark.parametrize("block", ["gmlp", "transformer"])
def test_causal_model_does_not_read_later_tokens(block):
    extra = {} if block == "gmlp" else {"heads": 1, "positions": "relative"}
    config = tiny("mqar", block, causal=True, **extra)
    task = Synthetic(config)
    params = task.init(jax.random.key(0))
    tokens = batch_of(config)["tokens"]
    changed_tokens = tokens.at[:, 40:].set(3)
    positions = jnp.broadcast_to(jnp.arange(64), tokens.shape)
    logits = task.apply(params, tokens, positions)
    changed = task.apply(params, changed_tokens, positions)
    before, after = np.split(logits, [40], axis=1)
    changed_before, changed_after = np.split(changed, [40], axis=1)
    assert_array_equal(before, changed_before)
    assert not np.allclose(after, changed_after)


def evaluated_shapes(block: str, kind: str):
    """The shapes of the sums of an evaluation batch."""
    config = tiny(kind, block)
    config_lib.resolve(config)
    task = Synthetic(config)
    batch = batch_of(config, count=2)
    sums, _ = jax.eval_shape(task.evaluate, task.shapes(), batch)
    return jax.tree.map(lambda leaf: leaf.shape, sums)


# One kind whose answers are in the sequence, and the one that the model compresses.
@pytest.mark.parametrize("kind", ["mqar", "compression"])
@pytest.mark.parametrize("block", blocks.BLOCKS)
def test_each_block_reads_both_forms_of_a_task(block, kind):
    assert evaluated_shapes(block, kind)["loss"] == ((), ())


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", blocks.BLOCKS)
def test_each_block_reads_each_task(block, kind):
    assert evaluated_shapes(block, kind)["loss"] == ((), ())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mqar", 1 / 4),
        ("recall", 1 / 24),
        ("fuzzy_recall", 1 / 24),
        ("noisy_recall", 1 / 16),
        ("selective_copying", 1 / 46),
        ("compression", 1 / 47),
        ("memorization", 1 / 23),
    ],
)
def test_baseline_is_a_guess(kind, expected):
    [baseline] = Synthetic(tiny(kind)).baselines({}, None)
    assert baseline.metrics == {"accuracy": expected}


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="synthetic.pairs"):
        config_lib.validate(tiny(length=14))
    with pytest.raises(ConfigError, match="expected one of mqar, recall"):
        config_lib.validate(tiny("copying"))


@pytest.mark.slow
def test_memorised_map_is_learned(tmp_path):
    config = tiny("memorization", length=8, vocab_size=16)
    config.batch_size = 32
    config.steps = 150
    config.optimizer.update(learning_rate=1e-2, warmup=15)
    config.checkpoint.every = 150
    result = loop.train(config, str(tmp_path / "run"))
    assert result is not None
    assert result["eval"]["accuracy"] > 0.95
    assert result["eval"]["examples"] == 40
    assert result["baselines"] == [{"name": "a value at random", "eval": {"accuracy": 1 / 7}}]


def test_power_with_infinite_shares_is_refused():
    """Otherwise, all gaps would come in one order instead of a random one."""
    config = tiny()
    config.synthetic.power = 1e300
    with pytest.raises(ConfigError, match=r"synthetic\.power is 1e\+300: expected from 0 to 16"):
        config_lib.resolve(config)
