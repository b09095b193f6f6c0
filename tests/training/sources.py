"""A tiny model in each form that a trained model may have."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from gmlp_flax.interop import exported
from gmlp_flax.training import pretrained
from tests.training import tiny
from tests.weights import states, test_vision_transformer

# A form -> its path within the folder of `write`.
OF_IMAGES = {
    "run": "digits",
    "checkpoint": "digits/checkpoints/12",
    "export": "exported",
    "exported weights": "exported/model.safetensors",
    "file of timm": "gmlp_s16_224.ra3_in1k.safetensors",
    "folder of timm": "timm",
    "weights of timm": "timm/model.safetensors",
    "file of vision_transformer": "imagenet1k-Mixer-B_16.npz",
}
OF_TEXT = {
    "run of text": "text",
    "folder of bert": "bert",
    "weights of bert": "bert/model.safetensors",
    "folder of fnet": "fnet",
}
SHIPPED = {"shipped": "digits"}
FORMS = {**OF_IMAGES, **OF_TEXT}
DESCRIBED = {"architecture": "gmlp_s16_224", "num_classes": 3}


def shrink(monkeypatch: Any) -> None:
    """Makes the timm models of `write` tiny."""
    states.shrink(monkeypatch, "gmlp_s16_224")
    sizes = {"d_ffn": 12, "d_spatial": 6, "image_size": (12, 12)}
    states.shrink(monkeypatch, "mixer_b16_224", **sizes)


def write(folder: Path, image_run: Path, text_run: Path) -> None:
    """Writes all forms. `shrink` must have made the timm models tiny."""
    shutil.copytree(image_run, folder / "digits")
    shutil.copytree(text_run, folder / "text")
    digits = pretrained.load(image_run)
    exported.export(digits, str(folder / "exported"))
    state, _ = states.of_timm("gmlp_s16_224", 3)
    states.write(folder / "gmlp_s16_224.ra3_in1k.safetensors", state)
    states.write(folder / "timm" / "model.safetensors", state)
    described = json.dumps(DESCRIBED)
    (folder / "timm" / "config.json").write_text(described)
    weights = test_vision_transformer.weights()
    np.savez(folder / "imagenet1k-Mixer-B_16.npz", **weights)
    for family in ("bert", "fnet"):
        state, _ = states.of_transformers(family)
        states.write_transformers(folder / family, family, state)
        states.write_vocabulary(folder / family, tiny.WORDS)


def path(folder: str | os.PathLike[str], form: str) -> str:
    """The path of a form."""
    return os.path.join(folder, FORMS[form])
