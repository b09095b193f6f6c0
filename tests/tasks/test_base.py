import jax.numpy as jnp

from gmlp_flax.tasks.base import weighted_sum


def test_sums_are_float32_whatever_the_values():
    total, weight = weighted_sum(jnp.full(3000, 1.0, jnp.bfloat16), jnp.ones(3000, jnp.bool_))
    assert (float(total), float(weight), total.dtype, weight.dtype) == (
        3000,
        3000,
        jnp.float32,
        jnp.float32,
    )


def test_spec_takes_all_fields_from_the_config(text_task):
    spec = text_task.spec()
    assert (spec.length, spec.layers, spec.d_model, spec.spatial_init_std) == (16, 2, 8, 0.02)


def test_metrics_are_shown_in_percent_and_counts_in_full(text_task):
    metrics = {
        "perplexity": 61.68,
        "accuracy": 0.2683,
        "ema_accuracy": 0.3,
        "predictions": 130_945.0,
        "loss": 1e12,
    }
    expected = (
        "perplexity 61.68  accuracy 26.8%  ema_accuracy 30.0%  predictions 130,945  loss 1e+12"
    )
    assert text_task.format_metrics(metrics) == expected
