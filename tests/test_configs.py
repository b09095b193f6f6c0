"""Every config file with every argument that it documents: it validates, and its model is the published one."""

from __future__ import annotations

import math
import runpy

import jax
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.models import sizes
from gmlp_flax.tasks import TASKS
from gmlp_flax.training import dry_run, loop

ABLATION, BERT = (runpy.run_path(f"configs/{name}.py")["MODELS"] for name in ("c4_ablation", "c4_bert"))
SMALL = tuple(runpy.run_path("configs/c4_ablation.py")["SMALL"])
LENGTHS = runpy.run_path("configs/long_text.py")["LENGTHS"]
TEXT_PARAMS_BESIDE_VOCABULARY = (0.39e6, 0.42e6)


def param_count(options) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(dry_run.dataless_task(options).shapes()))


@pytest.mark.parametrize(("path", "name"), [("c4_ablation", n) for n in ABLATION] + [("c4_bert", n) for n in BERT])
def test_the_papers_models(path, name):
    options = config_lib.from_file(f"configs/{path}.py", name)
    config_lib.validate(options)
    published = sizes.PUBLISHED[name]
    assert param_count(options) == sizes.param_count(published)
    wanted = (128, 2048, 125_000, 20) if path == "c4_ablation" else (512, 256, 1_000_000, 77)
    assert (options.model.length, options.batch_size, options.steps, options.masking.max_predictions) == wanted
    assert options.optimizer.clip == 0 and options.optimizer.schedule == "linear" and options.model.dtype == "bfloat16"


def test_the_tables_are_complete():
    """8 rows of Table 3, 8 of Table 4, 4 of appendix B, two aMLPs; 7 of Table 5."""
    assert len(ABLATION) == 22 and len(BERT) == 7


@pytest.mark.parametrize("name", SMALL)
def test_small_rows_are_of_one_size(name):
    options = config_lib.from_file("configs/c4_ablation.py", f"{name},scale=small")
    config_lib.validate(options)
    embeddings = options.model.vocab_size * (options.model.d_model + 1)
    low, high = TEXT_PARAMS_BESIDE_VOCABULARY
    assert low < param_count(options) - embeddings < high
    wide = config_lib.from_file("configs/c4_ablation.py", f"{name},scale=gpu")
    config_lib.validate(wide)
    assert (wide.model.d_model, wide.model.layers) == (256, 2 * options.model.layers)
    assert param_count(wide)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scale", ["base", "small"])
def test_long_inputs(length, scale):
    options = config_lib.from_file("configs/long_text.py", f"{length},scale={scale}")
    config_lib.validate(options)
    assert options.model.length == int(length) and options.model.toeplitz == "fft"
    taps = dry_run.dataless_task(options).shapes()["encoder"]["blocks"]["gate"]["spatial"]["taps"]
    assert taps.shape == (options.model.layers, 2 * int(length) - 1)


@pytest.mark.parametrize("name", SMALL)
def test_each_row_trains(name, tmp_path, monkeypatch):
    """Three steps on the embedded text: the loss falls from the logarithm of the vocabulary."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = config_lib.from_file("configs/c4_ablation.py", f"{name},scale=small")
    options.data.train, options.steps, options.batch_size, options.log.every = "embedded", 3, 4, 1
    options.model.update(length=32, vocab_size=600)
    options.optimizer.warmup = 1
    result = loop.train(options, str(tmp_path / "run"))
    assert result["step"] == 3 and 1 < result["eval"]["perplexity"] < 700
    assert options.task in TASKS


@pytest.mark.parametrize(("arg", "message"), [
    ("sgv", "did you mean 'sgu'"), ("sgu,scale=tiny", "scale is one of paper, small, gpu"),
    ("sgu,size=small", "expected scale="), ("gmlp_72,scale=small", "gmlp_72 has no scale=small: expected one of bert,"),
])
def test_a_wrong_argument_says_what_is_right(arg, message):
    with pytest.raises(Exception, match=message) as caught:
        config_lib.from_file("configs/c4_ablation.py", arg)
    assert type(caught.value).__name__ == "ConfigError"
