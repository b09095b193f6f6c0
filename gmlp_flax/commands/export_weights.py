"""Writes a run's weights, for use elsewhere.

    gmlp export --workdir=RUN --out=FOLDER [--checkpoint=latest|best|STEP]
    gmlp export --workdir=RUN --out=FILE.safetensors [--checkpoint=latest|best|STEP]

FOLDER gets model.safetensors with the parameters by name, which needs no gmlp_flax to be read, config.json, what
predictions need besides, such as tokenizer.model, and a README.md. `gmlp import --model=exported --checkpoint=FOLDER`
makes a run folder of it again.

FILE.safetensors has timm's names, for a model that timm has; the expression that loads it,
timm.create_model(NAME, checkpoint_path=FILE), is printed.
"""

from __future__ import annotations

import os

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.interop import exported, timm, weight_files

FILES = (".safetensors", *weight_files.PICKLES)  # what is named like this is no folder
USAGE = "export --workdir=RUN --out=FOLDER or FILE.safetensors [--checkpoint=latest|best|STEP]"


def main(_argv: list[str]) -> None:
    """Converts, and prints how to load the file."""
    workdir, out = cli.required("workdir", USAGE), cli.required("out", USAGE)
    if os.path.splitext(out)[1] in FILES and not os.path.isdir(out):
        print(f"wrote {out}: {timm.export(workdir, flags.FLAGS.checkpoint, out)}")
        return
    exported.export(workdir, flags.FLAGS.checkpoint, out)
    print(f"wrote {out}/{exported.WEIGHTS}, and what belongs to it: see {out}/{exported.CARD}")


def run() -> None:
    """The command line."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_string("out", None, "The folder to write, or a .safetensors file with the names of timm.")
    cli.run(main)
