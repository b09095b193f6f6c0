"""Mixers of google-research/vision_transformer under timm's names, from their .npz files."""

import os
import re
from collections.abc import Collection

from gmlp_flax.io.weight_files import State
from gmlp_flax.weights.state_dicts import renamed

ACTIVATION = "gelu_tanh"  # Flax's GELU
# Patterns of its names -> timm's names, replaced in turn.
_NAMES = {
    r"^MixerBlock_(\d+)/": r"blocks.\1.",
    "token_mixing/": "mlp_tokens.",
    "channel_mixing/": "mlp_channels.",
    "LayerNorm_0/": "norm1.",
    "LayerNorm_1/": "norm2.",
    "Dense_0/": "fc1.",
    "Dense_1/": "fc2.",
    "^pre_head_layer_norm/": "norm.",
    "^stem/": "stem.proj.",
    "^head/": "head.",
    "(kernel|scale)$": "weight",
}


def is_mixer(names: Collection[str]) -> bool:
    """Whether the names of some weights are those of a Mixer of vision_transformer."""
    return "stem/kernel" in names


def model_of(path: str) -> str:
    """The model of timm that a file such as Mixer-B_16.npz is named after; "" if none."""
    name, _, _ = os.path.basename(path).partition(".")
    match = re.fullmatch(r"(?:.*-)?Mixer-([SBL])_(\d+)", name)
    if match is None:
        return ""
    size, patch = match.groups()
    return f"mixer_{size.lower()}{patch}_224"


def as_timm(state: State) -> State:
    """A Mixer's arrays in timm's names and layouts."""
    tensors = {}
    for name, array in renamed(state, _NAMES).items():
        is_convolution = array.ndim == 4
        axes = (3, 2, 0, 1) if is_convolution else None  # None: in reverse order
        tensors[name] = array.transpose(axes)
    return tensors
