"""Other lengths than trained at: a real tiny run, and what its block and its parameters allow."""

import json
import os

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import lengths
from gmlp_flax.errors import RunError
from gmlp_flax.training import loop


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of two steps, made when asked for."""
    folder = tmp_path_factory.mktemp("lengths")

    def run(block, examples=16, **model):
        workdir = folder / f"{block}-{examples}"
        if not workdir.exists():
            config = config_lib.default(block=block)
            config.model.update(layers=1, d_model=16, d_ffn=32, length=32, vocab_size=500, **model)
            config.batch_size, config.steps, config.masking.max_predictions = 8, 2, 5
            config.eval.examples, config.eval.batch_size = examples, 16
            loop.train(config, str(workdir))
        return str(workdir)

    return run


def test_a_toeplitz_gmlp_takes_less_and_is_fitted_to_more(trained):
    found = lengths.score(trained("gmlp"), (16, 64))
    assert found["length"] == 32 and found["takes"] == {"32": True, "16": True, "64": False}
    assert all(1 < value < 5000 for value in found["perplexity"].values()) and not found["why"]


def test_a_mixer_has_one_length(trained):
    found = lengths.score(trained("mixer", d_spatial=16), (16,))
    assert found["takes"] == {"32": True, "16": False} and found["perplexity"]["16"] is None
    assert "does not fit" in found["why"]["16"] and "token_mlp" in found["why"]["16"]


def test_at_its_own_length_the_score_is_the_runs_own_on_all_text(trained):
    """Two runs that differ in how much they score on the way are one model."""
    workdir = trained("gmlp", examples=0)
    with open(os.path.join(workdir, "result.json")) as file:
        own = {"32": json.load(file)["eval"]["perplexity"]}
    assert lengths.score(workdir, ())["perplexity"] == lengths.score(trained("gmlp"), ())["perplexity"] == own


def test_what_cannot_be_scored(tmp_path):
    with pytest.raises(RunError, match="is no run folder"):
        lengths.score(str(tmp_path), (16,))
