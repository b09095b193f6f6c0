"""`gmlp draw`: what it refuses. The figures themselves are tested in tests/analysis."""

import pytest

from tests import preloaded


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "FIGURE is missing"),
        (("circles", "run"), "gmlp draw circles: did you mean"),
        (("filters",), "--workdir is missing: see gmlp draw --help"),
        (("augmentations",), "--config is missing: see gmlp draw --help"),
        (("filters", "run", "--workdir=other"), "'run' is one word too many"),
        (("augmentations", "run"), "'run' is one word too many"),
    ],
)
def test_user_errors_are_one_line(words, message):
    assert message in preloaded.refused("draw", *words)


@pytest.mark.slow
def test_curves_and_shift_invariance_of_a_run(text_run):
    done = preloaded.gmlp("draw", "curves", str(text_run))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{text_run}/figures/loss.png\n", done.stderr
    done = preloaded.gmlp("draw", "shift-invariance", f"--workdir={text_run}")
    assert done.returncode == 0, done.stderr
    first, *steps, matrices, bands, shares = done.stdout.splitlines()
    assert "by layer (0." in first
    assert " for smooth noise" in first
    assert steps[-1].startswith("step      12  ")
    assert matrices == f"{text_run}/figures/spatial_matrices.png"
    assert bands.endswith("spatial_bands.png")
    assert shares.endswith("toeplitz_share.png")
