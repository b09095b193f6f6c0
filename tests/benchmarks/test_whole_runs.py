"""The rows of finetuning and of compiling. The speed itself is not tested."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.benchmarks import whole_runs


@pytest.mark.slow
def test_finetuning_and_pretraining_are_measured(monkeypatch):
    small = config_lib.open_config("c4_ablation:sgu,scale=small")
    small.batch_size = 2
    small.model.update(layers=1, length=16, d_model=8, d_ffn=16, vocab_size=320)
    monkeypatch.setattr(whole_runs, "MODELS", ("sgu",))
    monkeypatch.setattr(config_lib, "open_config", lambda _: small.copy_and_resolve_references())
    rows = whole_runs.bench_finetune(1)
    assert [row["unit"] for row in rows] == ["examples/s", "x", "x"]
    for row in rows:
        assert row["median"] > 0


@pytest.mark.slow
def test_compiling_is_measured():
    lower, both = whole_runs.bench_compile()
    assert 0 < lower["median"] < both["median"] < 60
