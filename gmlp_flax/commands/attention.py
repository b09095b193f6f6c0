"""Draws what tiny attention looks at in a sentence or a pair of sentences (the paper's Figure 10).

    gmlp attention --workdir=RUN --text="A man plays." --second="Nobody plays." [--layers=all]

RUN/figures/attention.png shows how much each token (a row) looks at each token (a column): the largest weight of the
two in any layer of the first half of the network, as in the paper, or in all layers. attention_layers.png shows these
layers one by one. Of a Transformer's heads, the largest weight counts. A finetuned model reads its sequences filled up
with [PAD]; the figures leave the padding out, so rows may add up to less than 1.
"""

from __future__ import annotations

from absl import flags

from gmlp_flax.analysis import attention
from gmlp_flax.commands import cli
from gmlp_flax.training import loading


def main(_argv: list[str]) -> None:
    """Draws the maps of a checkpoint and prints their paths."""
    usage = "attention --workdir=DIR --text=SENTENCE [--second=SENTENCE] [--layers=all]"
    workdir, first = cli.required("workdir", usage), cli.required("text", usage)
    trained = loading.load(workdir, flags.FLAGS.checkpoint)
    print(*attention.draw(trained, workdir, first, flags.FLAGS.second, flags.FLAGS.layers), sep="\n")


def run() -> None:
    """The command line."""
    cli.define_run_flags(checkpoint="latest")
    flags.DEFINE_string("text", None, "A sentence.")
    flags.DEFINE_string("second", None, "Another, for a pair.")
    layers = [attention.FIRST_HALF, attention.ALL]
    flags.DEFINE_enum("layers", attention.FIRST_HALF, layers, "The layers that are drawn.")
    cli.run(main)
