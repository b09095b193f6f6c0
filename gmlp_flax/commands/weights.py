"""`gmlp export` and `gmlp push`: write the weights of any model for others to use."""

from typing import Any

from absl import flags

from gmlp_flax.api import factory
from gmlp_flax.commands import cli
from gmlp_flax.interop import exported
from gmlp_flax.interop.formats import FORMATS, OPSET
from gmlp_flax.weights.exports import WEIGHTS

EXPORT = """Writes the weights of a run, or third-party weights, to a folder.

    gmlp export --model=RUN --out=FOLDER [--dtype=bfloat16] [--format=torch] [--checkpoint=latest|best|STEP]
    gmlp export --model=hf-hub:timm/gmlp_s16_224.ra3_in1k --out=FOLDER
    gmlp export --model=gmlp_s16_224.safetensors --out=FOLDER
    gmlp export --model=bert-base-uncased/ --out=FOLDER

FOLDER gets model.safetensors, config.json, README.md, and the other files that predictions need, such as
tokenizer.model. `gmlp predict` and `evaluate` read it as --workdir, and config.init_from starts a run from it.
--format=torch adds modeling_gmlp.py, which needs only torch to read it. --format=stablehlo, onnx, onnx-float16 and
onnx-int8 add the forward pass.

Name a file from timm, or a Mixer's .npz from vision_transformer, after its model; 1,000 classes are assumed to be
ImageNet-1k's. A BERT's or FNet's folder, as transformers saves it, becomes a masked language model.
"""
PUSH = """Uploads a model to the Hugging Face hub.

    gmlp push RUN OWNER/NAME [--license=apache-2.0] [--private]
    gmlp push FOLDER OWNER/NAME

A run, or another model that `gmlp export` accepts, is exported first; an exported folder is
uploaded as it is. Then `gmlp predict --workdir=hf-hub:OWNER/NAME` uses it. Log in first with
`hf auth login`, or set a token as HF_TOKEN.
"""


def export_weights(_argv: list[str]) -> None:
    """Writes the folder."""
    source = cli.require("model")
    out = cli.require("out")
    model = factory.load(source, flags.FLAGS.checkpoint)
    options = _options()
    exported.export(model, out, **options)
    written = [WEIGHTS]
    for name in flags.FLAGS.format:
        written.append(FORMATS[name].file)
    names = ", ".join(written)
    print(f"wrote {names} and others to {out}: see {out}/{exported.CARD}")


def push(argv: list[str]) -> None:
    """Uploads, and prints where."""
    _, source, repository = argv
    values = flags.FLAGS
    commit = exported.push(
        source, repository, checkpoint=values.checkpoint, private=values.private, **_options()
    )
    print(f"pushed {commit}")


def _options() -> dict[str, Any]:
    """The flags that are given, of those that say what is written."""
    names = ("dtype", "format", "opset", "license")
    return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].present}


def _define_options() -> None:
    flags.DEFINE_enum("dtype", "float32", exported.DTYPES, "The type of the weights in FOLDER.")
    flags.DEFINE_multi_enum(
        "format", [], list(FORMATS), "Write the forward pass in this format too."
    )
    flags.DEFINE_integer(
        "opset",
        OPSET,
        "The version of ONNX's operators: onnxruntime 1.20 reads up to 21, 1.22 up to 22.",
        lower_bound=13,
    )
    flags.DEFINE_string(
        "license",
        "",
        "The weights' license for the card, as the Hugging Face hub names it: apache-2.0.",
    )


def run_export() -> None:
    """The command line of `gmlp export`."""
    flags.DEFINE_string(
        "model",
        None,
        "What gmlp_flax.load accepts: a run folder, a file or folder of weights, hf-hub:NAME.",
    )
    flags.DEFINE_alias("workdir", "model")  # as `gmlp predict` and `evaluate` call it
    flags.DEFINE_string("checkpoint", "best", "latest, best, or a step of a run.")
    flags.DEFINE_string("out", None, "The folder to write.")
    _define_options()
    cli.run(export_weights, about=EXPORT, doing="exporting")


def run_push() -> None:
    """The command line of `gmlp push`."""
    flags.DEFINE_string("checkpoint", "best", "latest, best, or a step of a run.")
    flags.DEFINE_bool("private", False, "Make a new repository private.")
    _define_options()
    cli.run(push, "RUN_OR_FOLDER OWNER/NAME", about=PUSH, doing="uploading")
