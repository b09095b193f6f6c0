"""Weights of the package g-mlp-pytorch (github.com/lucidrains/g-mlp-pytorch), read as timm's gMLP of other names."""

import math
import re

import numpy as np

from gmlp_flax.errors import RunError, decode_errors
from gmlp_flax.interop import timm, timm_names
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.tasks.image_classification import ImageClassification

# Its names as patterns, and timm's of the same gMLP.
NAMES = {r"^layers\.(\d+)\.fn\.fn": r"blocks.\1.mlp_channels", r"^layers\.(\d+)\.fn": r"blocks.\1", "proj_in.0": "fc1"}
NAMES |= {"proj_out": "fc2", "sgu.norm": "gate.norm", r"sgu\.": "gate.proj.", "to_qkv": "qkv", "to_out": "proj"}
NAMES |= {"^to_patch_embed.1": "stem.proj", "^to_logits.0": "norm", "^to_logits.2": "head"}


def read(state: dict[str, np.ndarray], where: str) -> tuple[ImageClassification, dict]:
    """The task and the parameters, a nested dict of numpy arrays, of a gMLPVision's state dict, whose shapes give its
    sizes; `where` is its source, for messages.

    Raises:
        RunError: weights are missing, unexpected or of another shape, or belong to a model that we do not have.
    """
    for pattern, name in NAMES.items():
        state = {re.sub(pattern, name, key): value for key, value in state.items()}
    layers, block = len({key.split(".")[1] for key in state if "gate.norm" in key}), "blocks.0.mlp_channels."
    with decode_errors(f"{where}, of g-mlp-pytorch", "give a gMLPVision with one head, for square images", RunError):
        if "stem.proj.weight" not in state:
            raise ValueError("it is no gMLPVision: gMLP has logits from a table of their own, our text models have not")
        heads, tokens = state[f"{block}gate.proj.bias"].shape
        d_model, inputs = state["stem.proj.weight"].shape
        rows, side = math.isqrt(tokens), math.isqrt(inputs // 3)
        if heads != 1:
            raise ValueError(f"it has {heads} heads, each with a W for its channels, and our gate has one W for all")
        if (rows**2, 3 * side**2) != (tokens, inputs):
            raise ValueError(f"its {tokens} patches of {inputs} numbers are no square ones, in RGB")
        state["stem.proj.weight"] = state["stem.proj.weight"].reshape(d_model, 3, side, side)
        state = {key: value[0] if ".gate.proj." in key else value for key, value in state.items()}  # the only head
        sizes = {"layers": layers, "d_model": d_model, "d_ffn": len(state[f"{block}fc1.bias"])}
        sizes |= {"d_attn": len(state.get(f"{block}attn.qkv.weight", ())) // 3, "norm_eps": 1e-5}
    config = timm_names.config_for("gmlp_s16_224")
    config.model.update(sizes, image_size=(rows * side, rows * side), patch_size=(side, side))
    config.data.update(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    to_stderr(f"note: {where} does not say how pixels were scaled: they are read as numbers from 0 to 1")
    return timm.read(state, config, "gmlp_s16_224", where)
