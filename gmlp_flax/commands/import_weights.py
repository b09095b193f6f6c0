"""Makes a run folder from timm's weights, from FNet's as the package transformers names them, or from exported ones.

    gmlp import --model=gmlp_s16_224 --checkpoint=FILE.safetensors --out=DIR [--data=PATH]
    gmlp import --model=hf-hub:timm/gmlp_s16_224.ra3_in1k --out=DIR [--data=PATH]
    gmlp import --model=fnet --checkpoint=model.safetensors --tokenizer=spiece.model --out=DIR
    gmlp import --model=exported --checkpoint=FOLDER --out=DIR

The folder is used like a run's: by `gmlp predict`, `gmlp draw`, config.init_from and, if --data names images (as
config.data.heldout does), by `gmlp evaluate`.

A model with 1,000 classes is taken for a model of ImageNet-1k. Its classes then have their WordNet ids as names, as in
ImageNet's folders and in TFDS, and predict shows timm's words for them if timm is installed when the folder is
written. Any other number of classes have their numbers as names. Pixels are normalised and cropped as timm does by
default for the architecture; a model from the hub brings its own numbers.

An FNet is a masked language model in the size that its weights have, such as google/fnet-base; its pooler and its head
for pairs of sentences are left out. FOLDER is one that `gmlp export --out=FOLDER` has written, of any model.
"""

from __future__ import annotations

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError
from gmlp_flax.interop import exported, fnet, timm, timm_names, weight_files

FNET, EXPORTED = "fnet", "exported"
USAGE = f"import --model=NAME --checkpoint=FILE --out=DIR, or --model={weight_files.HUB}timm/NAME.TAG --out=DIR"


def main(_argv: list[str]) -> None:
    """Converts a file, or weights from the hub."""
    name, out = cli.required("model", USAGE), cli.required("out", USAGE)
    hub = name.startswith(weight_files.HUB)
    ignored = {"checkpoint": hub, "tokenizer": name != FNET, "data": name in (FNET, EXPORTED)}
    if found := [flag for flag, unused in ignored.items() if unused and flags.FLAGS[flag].value]:
        raise RunError(f"--{found[0]} is not for --model={name}: leave it out")
    if name == FNET:
        path, tokenizer = cli.required("checkpoint", USAGE), cli.required("tokenizer", USAGE)
        fnet.convert(weight_files.read(path), tokenizer, out, path)
        print(f"wrote {out}: an FNet from {path}")
        return
    if name == EXPORTED:
        folder = cli.required("checkpoint", USAGE)
        exported.convert(folder, out)
        print(f"wrote {out}: what {folder} holds")
        return
    if hub:
        path, config, name = timm.from_hub(name.removeprefix(weight_files.HUB))
    else:
        config, path = timm_names.config_for(timm.known(name)), cli.required("checkpoint", USAGE)
    config.data.heldout = flags.FLAGS.data
    timm.convert(weight_files.read(path), config, name, out, path)
    print(f"wrote {out}: {name} from {path}")


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "model",
        None,
        f"timm's name of the model, {weight_files.HUB}REPOSITORY, which downloads it, {FNET} or {EXPORTED}.",
    )
    flags.DEFINE_string("checkpoint", None, "The file to convert, or the exported folder.")
    flags.DEFINE_string("tokenizer", None, "Of an FNet: its SentencePiece model, spiece.model.")
    flags.DEFINE_string("out", None, "The folder to write.")
    flags.DEFINE_string("data", "", "Held-out images for `gmlp evaluate`, as config.data.heldout takes them.")
    cli.run(main)
