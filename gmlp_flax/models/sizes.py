"""The published sizes, a table: how each model is built and what the paper prints for it."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.flops import matmul_flops
from gmlp_flax.models.image import ImageClassifier, token_count
from gmlp_flax.models.spec import EncoderSpec
from gmlp_flax.models.text import MaskedLM

# The paper does not print its vocabulary. 32,000 with one tied table reproduces every printed count of a gMLP.
VOCAB_SIZE = 32_000
# Share of positions whose logits are computed; Table 5's FLOPs fit BERT's 15 %.
PREDICTED = 0.15


@dataclasses.dataclass(frozen=True)
class Published:
    """A model with the paper's figures.

    Attributes:
        spec: the encoder.
        pool: how an image model reads its tokens; empty for a text model.
        params_m: the paper's parameters in millions.
        flops_g: the paper's operations per example in billions, where printed.
        source: the table of the paper.
        note: why a figure differs from the paper's, where it does.
    """

    spec: EncoderSpec
    params_m: float
    source: str
    flops_g: float | None = None
    pool: str = ""
    note: str = ""


def _image(d_model: int, survival: float, pool: str, params_m: float, flops_g: float, note: str = "") -> Published:
    spec = EncoderSpec(
        layers=30, length=token_count((224, 224), (16, 16), pool), d_model=d_model, d_ffn=6 * d_model, spatial="dense",
        survival=survival,
    )
    return Published(spec, params_m, "Table 1", flops_g, pool, note)


def _text(
    layers: int, length: int, d_model: int, d_ffn: int, params_m: float, source: str, flops_g: float | None = None,
    d_attn: int = 0,
) -> Published:
    spec = EncoderSpec(layers=layers, length=length, d_model=d_model, d_ffn=d_ffn, d_attn=d_attn)
    return Published(spec, params_m, source, flops_g)


_MEAN = "mean pooling, timm's layout; the paper's count fits a cls token and a pre-logits layer"
_CLS_S = "the paper prints 8.9; 8.84 rounds to 8.8"

PUBLISHED: dict[str, Published] = {
    "gmlp_ti": _image(128, 1.0, "mean", 5.9, 2.7),
    "gmlp_s": _image(256, 0.95, "mean", 19.5, 8.9, _MEAN),
    "gmlp_b": _image(512, 0.8, "mean", 73.4, 31.6, _MEAN),
    "gmlp_ti_cls": _image(128, 1.0, "cls", 5.9, 2.7),
    "gmlp_s_cls": _image(256, 0.95, "cls", 19.5, 8.9, _CLS_S),
    "gmlp_b_cls": _image(512, 0.8, "cls", 73.4, 31.6),
    "gmlp_18": _text(18, 128, 512, 3072, 59, "Table 4"),
    "gmlp_36": _text(36, 128, 512, 3072, 102, "Table 4"),
    "gmlp_72": _text(72, 128, 512, 3072, 187, "Table 4"),
    "gmlp_144": _text(144, 128, 512, 3072, 357, "Table 4"),
    "gmlp_base": _text(48, 512, 512, 3072, 130, "Table 5", 158.0),
    "gmlp_large": _text(96, 512, 768, 3072, 365, "Table 5", 430.1),
    "gmlp_xlarge": _text(144, 512, 1024, 4096, 941, "Table 5", 1091.3),
    "amlp_base": _text(36, 512, 512, 3072, 109, "Table 5", 128.9, d_attn=64),
    "amlp_large": _text(72, 512, 768, 3072, 316, "Table 5", 370.3, d_attn=128),
}


def build(model: Published, rngs: nnx.Rngs, classes: int = 1000) -> nnx.Module:
    """The module of a published model: 224 x 224 images in 16 x 16 patches, or masked text."""
    if model.pool:
        return ImageClassifier(
            model.spec, rngs, image_size=(224, 224), patch_size=(16, 16), classes=classes, pool=model.pool
        )
    return MaskedLM(model.spec, VOCAB_SIZE, rngs)


def param_count(model: Published) -> int:
    """Exact number of parameters, read off the shapes of the built module."""
    state = nnx.state(nnx.eval_shape(lambda: build(model, nnx.Rngs(0))), nnx.Param)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


def forward_flops(model: Published) -> int:
    """Operations of matrix products in one example's forward pass, logits at 15 % of a text's positions."""
    definition, state = nnx.split(nnx.eval_shape(lambda: build(model, nnx.Rngs(0))))
    if model.pool:
        inputs = (jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.uint8),)
    else:
        predictions = round(PREDICTED * model.spec.length)
        inputs = tuple(jax.ShapeDtypeStruct((1, count), jnp.int32) for count in (model.spec.length, predictions))
    return matmul_flops(lambda state, *inputs: nnx.merge(definition, state)(*inputs), state, *inputs)
