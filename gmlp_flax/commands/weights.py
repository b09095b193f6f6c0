"""`gmlp import` and `gmlp export`: weights from elsewhere, and for use elsewhere."""

import os

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError
from gmlp_flax.interop import exported, timm, timm_names, transformers
from gmlp_flax.io import weight_files

FILES = (".safetensors", *weight_files.PICKLES)  # what is named like this is no folder
IMPORT = """Makes a run folder from timm's weights, or BERT's and FNet's as the package transformers saves them.

    gmlp import --model=gmlp_s16_224 --checkpoint=FILE.safetensors --out=DIR [--data=PATH]
    gmlp import --model=hf-hub:timm/gmlp_s16_224.ra3_in1k --out=DIR [--data=PATH]
    gmlp import --model=bert|fnet --checkpoint=FOLDER --out=DIR

The folder is used like a run's: by `gmlp predict`, `gmlp draw`, config.init_from and, if --data names images (as
config.data.heldout does), by `gmlp evaluate`. 1,000 classes of timm's are taken for ImageNet-1k's, and named by their
WordNet ids; other classes are named by their numbers. A BERT or FNet becomes a masked language model, with its pooler,
without its head for pairs; FOLDER has config.json, model.safetensors or pytorch_model.bin, and the tokenizer, which
--tokenizer may name instead. What `gmlp export` has written needs no import.
"""
EXPORT = """Writes a run's weights, for use elsewhere.

    gmlp export --workdir=RUN --out=FOLDER [--dtype=bfloat16] [--checkpoint=latest|best|STEP]
    gmlp export --workdir=RUN --out=FILE.safetensors [--checkpoint=latest|best|STEP]

FOLDER gets model.safetensors, which needs no gmlp_flax to be read, config.json, what predictions need besides, such as
tokenizer.model, and a README.md. `gmlp predict`, `evaluate` and `draw` read it as --workdir, and runs start from it by
config.init_from. FILE.safetensors has
timm's names, for a model that timm has; the expression that loads it is printed.
"""


def import_weights(_argv: list[str]) -> None:
    """Converts a file, an exported folder, or weights from the hub."""
    name, out = cli.require("model"), cli.require("out")
    hub, text = name.startswith(weight_files.HUB), name in transformers.FAMILIES
    ignored = {"checkpoint": hub, "tokenizer": not text, "data": text}
    if given := [flag for flag, unused in ignored.items() if unused and flags.FLAGS[flag].value]:
        raise RunError(f"--{given[0]} is not for --model={name}: leave it out")
    path = "" if hub else cli.require("checkpoint")
    if text:
        transformers.convert(name, path, flags.FLAGS.tokenizer, out)
        print(f"wrote {out}: {name} from {path}")
    else:
        if hub:
            path, config, name = timm.from_hub(name.removeprefix(weight_files.HUB))
        else:
            config = timm_names.config_for(name)
        config.data.heldout = flags.FLAGS.data
        timm.convert(weight_files.read(path), config, name, out, path)
        print(f"wrote {out}: {name} from {path}")


def export_weights(_argv: list[str]) -> None:
    """Converts, and prints how to load the file."""
    workdir, out = cli.require("workdir"), cli.require("out")
    if os.path.splitext(out)[1] in FILES and not os.path.isdir(out):
        if flags.FLAGS["dtype"].present:
            raise RunError(f"--dtype is for a folder, and --out={out} is a file of timm's: leave it out")
        print(f"wrote {out}: {timm.export(workdir, flags.FLAGS.checkpoint, out)}")
        return
    exported.export(workdir, flags.FLAGS.checkpoint, out, flags.FLAGS.dtype)
    print(f"wrote {out}/{exported.WEIGHTS}, and what belongs to it: see {out}/{exported.CARD}")


def run_import() -> None:
    """The command line of `gmlp import`."""
    others = " or ".join(transformers.FAMILIES)
    names = f"timm's name of the model, {weight_files.HUB}REPOSITORY, which downloads it, or {others}."
    flags.DEFINE_string("model", None, names)
    flags.DEFINE_string("checkpoint", None, "The file to convert, or its folder.")
    flags.DEFINE_string("tokenizer", "", "Of a BERT or FNet, if it is not beside the weights: vocab.txt, spiece.model.")
    flags.DEFINE_string("out", None, "The folder to write.")
    flags.DEFINE_string("data", "", "Held-out images for `gmlp evaluate`, as config.data.heldout takes them.")
    cli.run(import_weights, about=IMPORT)


def run_export() -> None:
    """The command line of `gmlp export`."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_string("out", None, "The folder to write, or a .safetensors file with the names of timm.")
    flags.DEFINE_enum("dtype", "float32", exported.DTYPES, "Of the weights in FOLDER.")
    cli.run(export_weights, about=EXPORT)
