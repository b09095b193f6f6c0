"""Masked language models as the package transformers saves them (BERT, FNet), as models of ours."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import RunError, decode_errors, listed
from gmlp_flax.io import weight_files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.io.weight_files import Shape, State
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.weights.saved import SavedModel
from gmlp_flax.weights.state_dicts import (
    KEYS,
    LINEAR,
    NORM,
    QUERIES,
    SINGLE,
    VALUES,
    Row,
    from_torch,
    renamed,
)

# The files of a tokenizer that may lie beside the weights.
TOKENIZER_FILES = ("vocab.txt", "spiece.model", "tokenizer.json", "tokenizer_config.json")

# What both families have around their blocks.
FRAME = {"norm": "post", "embedding_norm": True, "transform": True, "mask_padding": True}

_HEAD = "cls.predictions"
BIAS = f"{_HEAD}.bias"
_DECODER = f"{_HEAD}.decoder"


class Family(NamedTuple):
    """Models of one architecture.

    Attributes:
        rows: their tensors.
        block: ours.
        model: keys of config.model that neither the shapes of the tensors nor config.json say.
    """

    rows: list[Row]
    block: str
    model: Mapping[str, Any]


def _shared_rows(base: str) -> list[Row]:
    embeddings = f"{base}.embeddings"
    layer = f"{base}.encoder.layer.*"
    return [
        Row(f"{embeddings}.word_embeddings.weight", "embedding", SINGLE),
        Row(f"{embeddings}.position_embeddings.weight", "positions/table", SINGLE),
        Row(f"{embeddings}.token_type_embeddings.weight", "segments/table", SINGLE),
        Row(f"{embeddings}.LayerNorm", "embedding_norm", NORM),
        Row(f"{layer}.intermediate.dense", "encoder/blocks/mlp/proj_in", LINEAR),
        Row(f"{layer}.output.dense", "encoder/blocks/mlp/proj_out", LINEAR),
        Row(f"{layer}.output.LayerNorm", "encoder/blocks/mlp_norm", NORM),
        Row(f"{base}.pooler.dense", "pooler", LINEAR),
        Row(f"{_HEAD}.transform.dense", "transform", LINEAR),
        Row(f"{_HEAD}.transform.LayerNorm", "transform_norm", NORM),
        Row(f"{_DECODER}.weight", "output_embedding", SINGLE),
        Row(BIAS, "bias", SINGLE),
    ]


_ATTENTION = "bert.encoder.layer.*.attention"
_BERT_ROWS = [
    Row(f"{_ATTENTION}.self.query", "encoder/blocks/attention/proj_in", QUERIES),
    Row(f"{_ATTENTION}.self.key", "encoder/blocks/attention/proj_in", KEYS),
    Row(f"{_ATTENTION}.self.value", "encoder/blocks/attention/proj_in", VALUES),
    Row(f"{_ATTENTION}.output.dense", "encoder/blocks/attention/out", LINEAR),
    Row(f"{_ATTENTION}.output.LayerNorm", "encoder/blocks/attention_norm", NORM),
    *_shared_rows("bert"),
]
_FNET_ROWS = [
    Row("fnet.embeddings.projection", "embedding_projection", LINEAR),
    Row("fnet.encoder.layer.*.fourier.output.LayerNorm", "encoder/blocks/mixing_norm", NORM),
    *_shared_rows("fnet"),
]
# The value of `model_type` in config.json -> the family.
FAMILIES = {
    "bert": Family(
        _BERT_ROWS,
        "transformer",
        {**FRAME, "positions": "absolute", "scale_embeddings": True, "activation": "gelu"},
    ),
    "fnet": Family(
        _FNET_ROWS,
        "fnet",
        {
            **FRAME,
            "positions": "absolute",
            "scale_embeddings": True,
            "activation": "gelu_tanh",
            "embedding_projection": True,
        },
    ),
}

# Sizes that show in a tensor: our key -> BERT-base's, for weights in which the tensor is missing.
_USUAL_SIZES = {"vocab_size": 30522, "length": 512, "token_types": 2, "d_ffn": 3072}
# Our key -> whose rows are counted.
_TABLES = {"vocab_size": "word", "length": "position", "token_types": "token_type"}
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
# The values that our models allow in config.json.
_ALLOWED = {
    "hidden_act": tuple(_ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "tie_word_embeddings": (True, False),
}
# Tensors of a head for pairs of sentences, those that our model has elsewhere, or computes.
_LEFT_OUT = re.compile(r"cls\.seq_relationship\.|cls\.predictions\.decoder\.|.*(_ids|dft_mat_\w+)$")
# TensorFlow's names of the two tensors of a norm, in the first models.
_OLD_NAMES = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}


def open_described(path: str, described: Mapping[str, Any]) -> SavedModel:
    """A masked language model of FAMILIES.

    Args:
        path: of its weights, beside which the tokenizer lies.
        described: what config.json beside them says, whose `model_type` is a family's.

    Raises:
        UserError: the weights are of another model, or a file is missing, damaged or too large.
    """
    family = described["model_type"]
    shapes = renamed(weight_files.shapes(path), _OLD_NAMES)
    config = config_for(family, shapes, described, path)
    tokenizer = _tokenizer_in(os.path.dirname(path) or ".", config.model.vocab_size)
    config.data.train = ""

    def read() -> dict[str, Any]:
        state = renamed(weight_files.read(path), _OLD_NAMES)
        return from_transformers(family, state, config, path)

    return SavedModel(path, config, {TOKENIZER_FILE: tokenizer.model}, read)


def _tokenizer_in(folder: str, rows: int) -> Tokenizer:
    """The tokenizer in a folder, of weights with so many rows of embeddings."""
    tokenizer = Tokenizer.load(folder)
    if tokenizer.note:
        to_stderr(tokenizer.note)
    if tokenizer.vocab_size > rows:
        raise RunError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} pieces, the weights have {rows} "
            "rows: give the tokenizer of these weights"
        )
    return tokenizer


def config_for(
    family: str, shapes: Mapping[str, Shape], described: Mapping[str, Any], where: str
) -> ConfigDict:
    """The config of the model that some weights belong to.

    Args:
        family: a key of FAMILIES.
        shapes: of the weights by name, which say the sizes.
        described: what config.json says of the rest; empty without one.
        where: the source of the weights, for messages.

    Raises:
        RunError, ConfigError: the weights are not of this family, or config.json asks for what our
            model does not have.
    """
    _refuse_other_models(family, described, where)
    config = config_lib.default(task="masked_lm", block=FAMILIES[family].block)
    config.model.update(FAMILIES[family].model)
    config.model.update(_sizes(family, shapes, where))
    activation = described.get("hidden_act", "")
    config.model.activation = _ACTIVATIONS.get(activation, config.model.activation)
    config.model.tie_embeddings = bool(described.get("tie_word_embeddings", True))
    config.model.pooler = f"{family}.pooler.dense.weight" in shapes
    what = f"{where}: its config.json"
    with decode_errors(what, "expected num_attention_heads and layer_norm_eps", RunError):
        config.model.norm_eps = float(described.get("layer_norm_eps", 1e-12))
        if "heads" in config.model:
            config.model.heads = described["num_attention_heads"]
    config_lib.validate(config)
    return config


def _refuse_other_models(family: str, described: Mapping[str, Any], where: str) -> None:
    allowed = {**_ALLOWED, "model_type": (family,)}
    other = {}
    for key, value in described.items():
        if key in allowed and value not in allowed[key]:
            other[key] = value
    if other:
        raise RunError(
            f"{where}: its config.json has {other}, and our {family} has no such model: give "
            "another"
        )


def _sizes(family: str, shapes: Mapping[str, Shape], where: str) -> dict[str, int]:
    """The keys of config.model that the shapes say."""
    sizes = dict(_USUAL_SIZES)
    width = 0
    for key, table in _TABLES.items():
        shape = shapes.get(f"{family}.embeddings.{table}_embeddings.weight", ())
        if len(shape) == 2:
            sizes[key] = shape[0]
            width = width or shape[1]
    if not width:
        names = listed(sorted(shapes), 3) or "nothing"
        raise RunError(
            f"{where} holds no model that transformers calls {family} (it has {names}): give "
            "another file"
        )
    sizes["d_model"] = width
    inner = shapes.get(f"{family}.encoder.layer.0.intermediate.dense.bias", ())
    if len(inner) == 1:
        (sizes["d_ffn"],) = inner
    sizes["layers"] = _layer_count(family, shapes)
    return sizes


def _layer_count(family: str, shapes: Mapping[str, Shape]) -> int:
    pattern = re.compile(rf"{family}\.encoder\.layer\.(\d+)\.")
    numbers = set()
    for name in shapes:
        match = pattern.match(name)
        if match:
            numbers.add(match[1])
    return len(numbers)


def from_transformers(family: str, state: State, config: ConfigDict, where: str) -> dict[str, Any]:
    """A state dict as our parameters, a nested dict of arrays.

    The bias of the logits may have the name of the layer that it is tied to; if the logits are not
    tied to the embedding, that layer's bias is the one that counts.

    Args:
        family: a key of FAMILIES.
        state: the tensors.
        config: of the model, as `config_for` makes it.
        where: the source of the weights, for messages.

    Raises:
        RunError: weights are missing, unexpected, of another shape or not finite, or the logits
            have weights of their own and the config has none.
    """
    tensors = {name: value for name, value in state.items() if not _LEFT_OUT.match(name)}
    weight = state.get(f"{_DECODER}.weight")
    bias = state.get(f"{_DECODER}.bias")
    is_tied = config.model.tie_embeddings
    if bias is not None and (BIAS not in tensors or not is_tied):
        tensors[BIAS] = bias
    if is_tied:
        _require_tied(weight, state.get(f"{family}.embeddings.word_embeddings.weight"), where)
    elif weight is not None:
        tensors[f"{_DECODER}.weight"] = weight
    like = MaskedLanguageModeling(config).shapes()
    return from_torch(tensors, FAMILIES[family].rows, like, where)


def _require_tied(weight: np.ndarray | None, words: np.ndarray | None, where: str) -> None:
    """Raises RunError if the logits have other weights than the embedding."""
    if weight is None or words is None or np.array_equal(weight, words):
        return
    raise RunError(
        f"{where}: {_DECODER}.weight is not the embedding, to which the logits are tied unless its "
        "config.json has tie_word_embeddings false: give another, or say so there"
    )
