"""Draws spatial matrices and how near they are to Toeplitz.

    gmlp shift-invariance --workdir=runs/dense

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint (`--config.model.spatial=dense`) look
as if they had it. Here that is a number: the share of the variance of a matrix's weights that offsets explain, which is
what is left of it when each weight is replaced by the mean of all weights at its offset: on the same diagonal, or,
between the patches of an image, as many rows and columns apart. It is 1 for a Toeplitz matrix and about 2/n for noise
on n tokens of text, 4/n on n patches. It is read from every checkpoint that the run kept, so
`--config.checkpoint.every=50 --config.checkpoint.keep=100` makes a curve of it.
"""

from __future__ import annotations

from absl import flags

from gmlp_flax.analysis import shift_invariance
from gmlp_flax.commands import cli


def main(_argv: list[str]) -> None:
    """Prints the shares, draws them and the matrices, and prints the paths."""
    workdir = cli.required("workdir", "shift-invariance --workdir=DIR")
    found = shift_invariance.of_run(workdir)
    noise = shift_invariance.noise_share(found.shape)
    print(f"share of the variance of W that offsets explain, by layer (noise: {noise:.3f})")
    for step, share in found.shares.items():
        print(f"step {step:>7}  " + "  ".join(f"{each:.3f}" for each in share))
    print("\n".join(shift_invariance.draw(found, workdir)))


def run() -> None:
    """The command line."""
    flags.DEFINE_string("workdir", None, "The run folder.")
    cli.run(main)
