"""Time and memory of the mixers over the number of tokens. The speed itself is not tested."""

import pytest

from gmlp_flax import tasks
from gmlp_flax.benchmarks import mixers
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import parameters
from tests import preloaded
from tests.failures import raised


def by_figure(entries, row, tokens):
    """Figure -> entry. All entries are of one row and length."""
    figures = {}
    for entry in entries:
        assert entry["row"] == row
        assert entry["tokens"] == tokens
        figures[entry["figure"]] = entry
    return figures


@pytest.mark.slow
def test_a_step_is_timed_and_its_memory_and_operations_are_counted():
    entries = mixers.bench_mixers(2, ["fnet"], [64])
    found = by_figure(entries, "fnet", 64)
    assert set(found) == {"seconds", "bytes", "flops", "parameters"}
    seconds = found["seconds"]
    assert len(seconds["values"]) == 2
    assert min(seconds["values"]) > 0
    assert seconds["batch"] == 32
    config = mixers.at_length("fnet", 64)
    task = tasks.find(config.task)(config)
    count = parameters.count(task.shapes())
    assert found["parameters"]["median"] == count
    assert found["bytes"]["median"] > 12 * count  # parameters and Adam's moments
    d = 128
    n = 64
    transform = 2 * d * d + 2 * n * d
    mlp = 2 * d * 776
    layers = 2 * n * (transform + mlp)
    logits = 10 * d * 2000  # of 10 masked tokens
    flops = found["flops"]
    assert flops["median"] == 2 * (layers + logits)


def test_the_length_of_a_row_is_changed():
    config = mixers.at_length("fnet", 64)
    assert config.masking.max_predictions == 10
    assert config.model.length == 64


@pytest.mark.slow
def test_steps_that_exceed_the_memory_are_compiled_but_not_timed(monkeypatch):
    monkeypatch.setattr(mixers, "SHARE", 0.0)
    entries = mixers.bench_mixers(2, ["sgu"], [64])
    found = by_figure(entries, "sgu", 64)
    assert "seconds" not in found
    assert found["bytes"]["median"] > 1e6


@pytest.mark.parametrize(("tokens", "batch_size"), [(128, 16), (2048, 2), (16_384, 2)])
def test_long_sequences_have_small_batches(tokens, batch_size):
    config = mixers.at_length("sgu", tokens)
    assert config.batch_size == batch_size


def test_rows_and_lengths_are_checked_before_anything_is_measured():
    message = raised(ConfigError, mixers.bench_mixers, 1, ["sgv"], [64])
    assert "'sgv'; did you mean 'sgu'" in message
    done = preloaded.gmlp("benchmark", "mixers", "--rows=sgu", "--lengths=7")
    assert done.returncode == 2
    assert "--lengths has 7" in done.stderr.splitlines()[-1]
