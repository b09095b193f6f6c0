"""Reading the checkpoints of a run."""

import jax
from numpy.testing import assert_array_equal

from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.checkpoints.reading import Damaged
from gmlp_flax.training import pretrained
from gmlp_flax.training.saved_run import SavedRun
from tests.failures import raised


def test_parameters_of_a_step(text_run, partition):
    run = SavedRun.open(str(text_run))
    saved = run.find("latest")
    assert saved.step == 12
    assert saved.where == str(text_run / "checkpoints" / "12")
    params = leaves_by_path(run.read("params", saved.step, partition))
    model = pretrained.load(str(text_run), "latest")
    expected = leaves_by_path(model.params)
    jax.tree.map(assert_array_equal, params, expected)


def test_part_that_was_not_saved_is_refused(text_run, partition):
    run = SavedRun.open(str(text_run))
    assert "ema" in raised(Damaged, run.read, "ema", 12, partition)


def test_error_names_the_other_steps(text_run, partition):
    run = SavedRun.open(str(text_run))
    message = raised(Damaged, run.read, "nothing", 12, partition)
    assert message.endswith("checkpoint 6")
