"""Writes a run's weights as timm names them.

    gmlp export --workdir=RUN --out=FILE.safetensors [--checkpoint=latest|best|STEP]

It prints the expression that loads them, timm.create_model(NAME, checkpoint_path=FILE).
"""

from __future__ import annotations

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.interop import timm

USAGE = "export --workdir=RUN --out=FILE.safetensors [--checkpoint=latest|best|STEP]"


def main(_argv: list[str]) -> None:
    """Converts, and prints how to load the file."""
    workdir, out = cli.required("workdir", USAGE), cli.required("out", USAGE)
    print(f"wrote {out}: {timm.export(workdir, flags.FLAGS.checkpoint, out)}")


def run() -> None:
    """The command line."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_string("out", None, "The .safetensors file to write.")
    cli.run(main)
