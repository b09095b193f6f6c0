import numpy as np
import pytest

from gmlp_flax.training import schedule


def rates(config, **options):
    config.steps = 10
    config.optimizer.update(learning_rate=0.4, **options)
    rate = schedule.learning_rate(config)
    return np.array([float(rate(step)) for step in range(10)])


@pytest.mark.smoke
def test_warmup_begins_above_zero_and_reaches_the_peak(config):
    for name in ("cosine", "linear", "constant"):
        np.testing.assert_allclose(rates(config, schedule=name, warmup=4)[:4], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)


def test_cosine(config):
    expected = 0.4 * 0.5 * (1 + np.cos(np.pi * np.arange(6) / 6))
    np.testing.assert_allclose(rates(config, schedule="cosine", warmup=4)[4:], expected, rtol=1e-5)


def test_linear(config):
    np.testing.assert_allclose(rates(config, schedule="linear", warmup=4)[4:], 0.4 * (1 - np.arange(6) / 6), rtol=1e-5)


def test_constant(config):
    np.testing.assert_allclose(rates(config, schedule="constant", warmup=0), np.full(10, 0.4), rtol=1e-6)


def test_no_warmup(config):
    np.testing.assert_allclose(rates(config, schedule="linear", warmup=0), 0.4 * (1 - np.arange(10) / 10), rtol=1e-5)


def test_rsqrt(config):
    """Long Range Arena's: base * min(1, step / warmup) / sqrt(max(step, warmup)), of which the peak is base / sqrt(warmup).
    Its first step has number 0; ours is one ahead in the warmup alone."""
    base, warmup = 0.05, 4
    steps = np.arange(4, 10)
    published = base * np.minimum(1, steps / warmup) / np.sqrt(np.maximum(steps, warmup))
    config.steps = 10
    config.optimizer.update(learning_rate=base / warmup**0.5, schedule="rsqrt", warmup=warmup)
    rate = schedule.learning_rate(config)
    np.testing.assert_allclose([float(rate(step)) for step in range(4)], 0.025 * np.arange(1, 5) / 4, rtol=1e-6)
    np.testing.assert_allclose([float(rate(step)) for step in steps], published, rtol=1e-6)
    np.testing.assert_allclose(rate(steps), published, rtol=1e-6)


def test_rsqrt_does_not_depend_on_the_end(config):
    short = rates(config, schedule="rsqrt", warmup=3)
    config.steps = 1000
    config.optimizer.update(learning_rate=0.4)
    np.testing.assert_allclose([float(schedule.learning_rate(config)(step)) for step in range(10)], short)
    # A warmup longer than the run does not reach its peak, as in Long Range Arena's Retrieval.
    np.testing.assert_allclose(
        rates(config, schedule="rsqrt", warmup=2000)[:4], 0.4 * np.arange(1, 5) / 2000, rtol=1e-4
    )
    np.testing.assert_allclose(rates(config, schedule="rsqrt", warmup=0)[:4], 0.4 / np.sqrt([1, 2, 3, 4]), rtol=1e-6)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_ends_at_zero(config, name):
    config.steps = 1000
    config.optimizer.update(learning_rate=1.0, schedule=name, warmup=10)
    rate = schedule.learning_rate(config)
    assert 0 <= float(rate(999)) < 2e-3 and float(rate(1000)) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("warmup", [1, 10, 50])
def test_warmup_of_one_step_and_of_the_whole_run(config, warmup):
    found = rates(config, schedule="cosine", warmup=warmup)
    assert np.isfinite(found).all() and found.max() == pytest.approx(0.4)
    assert found[0] == pytest.approx(0.4 / min(warmup, 10))
