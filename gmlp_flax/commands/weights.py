"""`gmlp import` and `gmlp export`: weights from elsewhere, and for use elsewhere."""

from typing import Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError
from gmlp_flax.interop import exported, timm, timm_names, transformers
from gmlp_flax.interop.formats import FORMATS
from gmlp_flax.io import weight_files
from gmlp_flax.training import loading, pretrained

IMPORT = """Makes a model to use of timm's weights, or BERT's and FNet's as the package transformers saves them.

    gmlp import --model=gmlp_s16_224 --checkpoint=FILE.safetensors --out=DIR
    gmlp import --model=hf-hub:timm/gmlp_s16_224.ra3_in1k --out=DIR
    gmlp import --model=bert|fnet --checkpoint=FOLDER --out=DIR

The folder is used like a run's: by `gmlp predict`, `draw` and `evaluate`, and by config.init_from. 1,000 classes of
timm's are taken for ImageNet-1k's, and named by their WordNet ids; other classes are named by their numbers. A BERT or
FNet becomes a masked language model, with its pooler, without its head for pairs; FOLDER has config.json,
model.safetensors or pytorch_model.bin, and the tokenizer, which --tokenizer may name instead. What `gmlp export` has
written needs no import.
"""
EXPORT = """Writes a run's weights, for use elsewhere.

    gmlp export --workdir=RUN --out=FOLDER [--dtype=bfloat16] [--format=torch] [--checkpoint=latest|best|STEP]

FOLDER gets model.safetensors, which needs no gmlp_flax to be read, config.json, what predictions need besides, such as
tokenizer.model, and a README.md. `gmlp predict` and `evaluate` read it as --workdir, and runs start from it by
config.init_from. --format=torch adds modeling_gmlp.py, which reads it with torch alone; --format=stablehlo and onnx add
the forward pass.
"""
PUSH = """Uploads a run, or a folder that `gmlp export` has written, to the Hugging Face hub.

    gmlp push RUN OWNER/NAME [--license=apache-2.0] [--private]
    gmlp push FOLDER OWNER/NAME

A run is exported first, as `gmlp export` does; a folder is uploaded as it is. Then `gmlp predict
--workdir=hf-hub:OWNER/NAME` uses it. Log in before with `hf auth login`, or give a token as HF_TOKEN.
"""


def import_weights(_argv: list[str]) -> None:
    """Converts a file, an exported folder, or weights from the hub."""
    name, out = cli.require("model"), cli.require("out")
    hub, text = name.startswith(weight_files.HUB), name in transformers.FAMILIES
    ignored = {"checkpoint": hub, "tokenizer": not text}
    if given := [flag for flag, unused in ignored.items() if unused and flags.FLAGS[flag].value]:
        raise RunError(f"--{given[0]} is not for --model={name}: leave it out")
    path = "" if hub else cli.require("checkpoint")
    if text:
        transformers.convert(name, path, flags.FLAGS.tokenizer, out)
        print(f"wrote {out}: {name} from {path}")
    else:
        if hub:
            state, config, name, path = timm.from_folder(name)
        else:
            config = timm_names.config_for(name)
            state = weight_files.read(path)
        timm.convert(state, config, name, path, out)
        print(f"wrote {out}: {name} from {path}")


def export_weights(_argv: list[str]) -> None:
    """Writes the folder."""
    workdir, out = cli.require("workdir"), cli.require("out")
    exported.export(loading.load(workdir, flags.FLAGS.checkpoint), out, **_options())
    print(f"wrote {out}/{pretrained.WEIGHTS}, and what belongs to it: see {out}/{exported.CARD}")


def push(argv: list[str]) -> None:
    """Uploads, and prints where."""
    _, source, repository = argv
    is_folder = pretrained.is_exported(pretrained.locate(source))
    model = source if is_folder else loading.load(source, flags.FLAGS.checkpoint)
    print(f"pushed {exported.push(model, repository, private=flags.FLAGS.private, **_options())}")


def _options() -> dict[str, Any]:
    return {name: flags.FLAGS[name].value for name in ("dtype", "format", "license")}


def _define_options() -> None:
    flags.DEFINE_enum("dtype", "float32", exported.DTYPES, "Of the weights in FOLDER.")
    flags.DEFINE_multi_enum("format", [], [*FORMATS], "Writes the forward pass in this format too.")
    flags.DEFINE_string("license", "", "Of the weights, for the card, as the Hugging Face hub names it: apache-2.0.")


def run_import() -> None:
    """The command line of `gmlp import`."""
    others = " or ".join(transformers.FAMILIES)
    names = f"timm's name of the model, {weight_files.HUB}REPOSITORY, which downloads it, or {others}."
    flags.DEFINE_string("model", None, names)
    flags.DEFINE_string("checkpoint", None, "The file to convert, or its folder.")
    flags.DEFINE_string("tokenizer", "", "Of a BERT or FNet, if it is not beside the weights: vocab.txt, spiece.model.")
    flags.DEFINE_string("out", None, "The folder to write.")
    cli.run(import_weights, about=IMPORT, doing="reading and converting weights")


def run_export() -> None:
    """The command line of `gmlp export`."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_string("out", None, "The folder to write.")
    _define_options()
    cli.run(export_weights, about=EXPORT, doing="exporting")


def run_push() -> None:
    """The command line of `gmlp push`."""
    flags.DEFINE_string("checkpoint", "best", "Of a run: latest, best, or a step.")
    flags.DEFINE_bool("private", False, "A repository that is made is private.")
    _define_options()
    cli.run(push, "RUN_OR_FOLDER OWNER/NAME", about=PUSH, doing="uploading")
