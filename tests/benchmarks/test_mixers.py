"""Time and memory of the mixers over the number of tokens: what is measured, not how fast it is."""

from gmlp_flax import tasks
from gmlp_flax.benchmarks import mixers
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import parameters
from tests import preloaded
from tests.failures import raised


def by_figure(entries):
    return {(entry["row"], entry["tokens"], entry["figure"]): entry for entry in entries}


def test_a_step_is_timed_and_its_memory_and_operations_are_counted():
    found = by_figure(mixers.bench_mixers(2, ["fnet"], [64]))
    assert set(found) == {
        ("fnet", 64, figure) for figure in ("seconds", "bytes", "flops", "parameters")
    }
    seconds = found["fnet", 64, "seconds"]
    assert len(seconds["values"]) == 2
    assert min(seconds["values"]) > 0
    assert seconds["batch"] == 32
    config = mixers.at_length("fnet", 64)
    assert config.masking.max_predictions == 10
    assert config.model.length == 64
    task = tasks.find(config.task)(config)
    assert found["fnet", 64, "parameters"]["median"] == parameters.count(task.shapes())
    # Two layers: the transform's 2 d^2 + 2 n d and the MLP's 2 d d_ffn per token; logits at 10
    # places.
    d = 128
    n = 64
    expected = 2 * (2 * n * (2 * d * d + 2 * n * d + 2 * d * 776) + 10 * d * 2000)
    assert found["fnet", 64, "flops"]["median"] == expected
    # parameters and Adam's moments
    assert found["fnet", 64, "bytes"]["median"] > 12 * parameters.count(task.shapes())


def test_what_does_not_fit_is_compiled_alone(monkeypatch):
    monkeypatch.setattr(mixers, "SHARE", 0.0)
    found = by_figure(mixers.bench_mixers(2, ["sgu"], [64]))
    assert ("sgu", 64, "seconds") not in found
    assert found["sgu", 64, "bytes"]["median"] > 1e6


def test_one_sequence_per_step_where_it_is_long():
    assert [mixers.at_length("sgu", tokens).batch_size for tokens in (128, 2048, 16_384)] == [
        16,
        2,
        2,
    ]


def test_rows_and_lengths_are_checked_before_anything_is_measured():
    assert "'sgv'; did you mean 'sgu'" in raised(ConfigError, mixers.bench_mixers, 1, ["sgv"], [64])
    done = preloaded.gmlp("benchmark", "mixers", "--rows=sgu", "--lengths=7")
    assert done.returncode == 2
    assert "--lengths has 7" in done.stderr.splitlines()[-1]
