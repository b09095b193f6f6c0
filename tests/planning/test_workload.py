"""Operations and memory of a step, counted from the config's own loss."""

import pytest

from gmlp_flax import config
from gmlp_flax.paper import published
from gmlp_flax.planning.dry_run import workload


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("c4_bert", "gmlp_xlarge"),
        ("c4_bert", "bert_base"),
        ("imagenet", "gmlp_s"),
    ],
)
def test_a_published_model_has_its_published_sizes(file, name):
    """The loss has the products of the table's forward pass, including logits at 77 of 512
    positions."""
    options = config.from_file(f"configs/{file}.py", name)
    model = published.PUBLISHED[name]
    work = workload(options)
    assert work.params == published.param_count(model)
    assert work.param_bytes == 4 * work.params
    assert work.state_bytes == pytest.approx(12 * work.params, rel=1e-4)  # and two moments
    assert work.flops == 3 * options.batch_size * published.forward_flops(model)


def small(**model):
    """A text model of two layers."""
    options = config.from_file("configs/quickstart_text.py")
    options.model.update(layers=2, length=64, d_model=32, d_ffn=128, vocab_size=500)
    options.model.update(model)
    return options


@pytest.mark.slow
def test_remat_saves_less_memory_and_executes_more_operations():
    matmuls = workload(small(remat="matmuls", d_attn=16))
    full = workload(small(remat="full", d_attn=16))
    assert full.saved_bytes < matmuls.saved_bytes
    assert full.executed_flops > matmuls.executed_flops
    assert full.flops == matmuls.flops
    without = workload(small(remat="matmuls"))
    assert without.executed_flops == without.flops  # no product of a gMLP is computed twice


def test_products_grow_with_the_batch_but_memory_of_an_example_does_not():
    options = small()
    before = workload(options)
    options.batch_size *= 2
    after = workload(options)
    assert after.flops == 2 * before.flops
    assert after.saved_bytes == before.saved_bytes
    assert after.state_bytes == before.state_bytes
    assert after.batch_bytes == before.batch_bytes == 64 * 4 + 4


def test_a_running_mean_of_parameters_is_state():
    options = small()
    before = workload(options)
    options.optimizer.ema = 0.9
    after = workload(options)
    assert after.state_bytes == before.state_bytes + before.param_bytes


def test_saved_activations_include_the_products():
    """Each of two layers has products over channels and over tokens."""
    work = workload(small(dtype="float32"))
    in_projection = 128  # both halves of d_ffn
    gate = 64
    out_projection = 32
    channels = in_projection + gate + out_projection
    assert work.saved_bytes >= 2 * 4 * 64 * channels


def test_a_float32_residual_stream_is_planned():
    """Each of two layers, and the final norm, saves its input in 4 bytes instead of 2."""
    plain = workload(small(dtype="bfloat16", residual_dtype=""))
    wide = workload(small(dtype="bfloat16", residual_dtype="float32"))
    assert wide.saved_bytes - plain.saved_bytes == 3 * 2 * 64 * 32
    assert wide.state_bytes == plain.state_bytes
    assert wide.executed_flops == plain.executed_flops
