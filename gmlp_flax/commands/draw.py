"""Draws what a run learned, or what a config does to its images, and prints the paths of the
figures.

    gmlp draw curves runs/text
    gmlp draw filters runs/text --checkpoint=best
    gmlp draw attention runs/mnli --text="A man plays." --second="Nobody plays."
    gmlp draw shift-invariance runs/dense
    gmlp draw augmentations --config=imagenet:gmlp_s --config.data.train=photos/ --out=samples.png

The figures of a run are written to RUN/figures as PNG, SVG and PDF. RUN may also be given as
--workdir=RUN. It may be whatever gmlp_flax.load accepts; if that is not a folder, the figures are
written to figures/.

curves            the loss over the steps, in training and held out
filters           rows of each layer's spatial matrix: a text's middle token (the paper's Figure 4),
                  or some patches (3)
attention         how much each token (a row) looks at each token (a column) of a sentence or a pair
                  (Figure 10): the largest weight in the first half of the layers, and each layer
                  separately
shift-invariance  how close spatial matrices are to Toeplitz ones (Figure 9): the share of their
                  variance that offsets explain, which is 1 for a Toeplitz matrix and about 2/n for
                  noise, at all checkpoints that the run has kept
augmentations     one row per training image: the centre crop of evaluation, then augmented samples;
                  and, if the config mixes images, samples before and after mixing, each with the
                  weight of its own label
"""

from collections.abc import Callable
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.analysis import (
    attention,
    augmentations,
    figure_files,
    filters,
    shift_invariance,
)
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, did_you_mean
from gmlp_flax.io import files
from gmlp_flax.reports import curves
from gmlp_flax.training import pretrained
from gmlp_flax.training.model import Model

FLAGS: Any = flags.FLAGS
Figures = dict[str, Any]  # by name

AUGMENTATIONS = "augmentations"  # of a config


def _load(source: str) -> Model:
    return pretrained.load(source, FLAGS.checkpoint)


def _curves(workdir: str) -> Figures:
    return {"loss": curves.of_run(workdir)}


def _filters(source: str) -> Figures:
    return {"filters": filters.figure(_load(source))}


def _attention(source: str) -> Figures:
    text = cli.require("text")
    return attention.figures(attention.of_text(_load(source), text, FLAGS.second))


def _shift_invariance(workdir: str) -> Figures:
    result = shift_invariance.shift_invariance(workdir)
    by_chance = shift_invariance.chance(tuple(result.shape)).words()
    print(f"share of the variance of W that offsets explain, by layer ({by_chance})")
    for step, shares in result.shares.items():
        print(f"step {step:>7}  " + "  ".join(f"{share:.3f}" for share in shares))
    return shift_invariance.figures(result)


# What is drawn of a run.
FIGURES: dict[str, Callable[[str], Figures]] = {
    "curves": _curves,
    "filters": _filters,
    "attention": _attention,
    "shift-invariance": _shift_invariance,
}


def main(argv: list[str], config: ConfigDict | None) -> None:
    """Draws what the command line names."""
    figure, *runs = argv[1:]
    if runs and (FLAGS.workdir or figure == AUGMENTATIONS):
        raise ConfigError(f"{runs[0]!r} is one word too many: see gmlp draw --help")
    if figure in FIGURES:
        source = runs[0] if runs else cli.require("workdir")
        drawn = FIGURES[figure](source)
        folder = source if files.is_folder(source) else ""
        print(*figure_files.save(drawn, folder), sep="\n")
        return
    if figure != AUGMENTATIONS:
        raise ConfigError(f"gmlp draw {figure}: {did_you_mean(figure, (*FIGURES, AUGMENTATIONS))}")
    if config is None:
        raise ConfigError("--config is missing: see gmlp draw --help")
    out = cli.require("out")
    count = augmentations.draw(config, out, FLAGS.images, FLAGS.samples)
    print(f"{count} images, {FLAGS.samples} samples of each: {out}")


def run() -> None:
    """The command line."""
    cli.define_run_flags(checkpoint="latest")
    flags.DEFINE_string("text", None, "Attention: a sentence.")
    flags.DEFINE_string("second", None, "Attention: another sentence, for a pair.")
    flags.DEFINE_string("out", None, "Augmentations: the .png file to write.")
    flags.DEFINE_integer(
        "images", 8, "Augmentations: how many images, one row each.", lower_bound=1
    )
    flags.DEFINE_integer(
        "samples", 7, "Augmentations: augmented samples of each image.", lower_bound=1
    )
    cli.run(main, "FIGURE [RUN]", config=cli.given_config, doing="drawing")
