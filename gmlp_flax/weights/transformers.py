"""Language models as the package transformers saves them (BERT, FNet, RoBERTa, DistilBERT,
ModernBERT, Llama), as models of ours."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import ConfigError, RunError, decode_errors, listed
from gmlp_flax.io import files, weight_files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.io.weight_files import Shape, State
from gmlp_flax.weights.saved import SavedModel
from gmlp_flax.weights.state_dicts import from_torch, renamed
from gmlp_flax.weights.transformers_models import FAMILIES, HALVES, Family

T = TypeVar("T")

# The files of a tokenizer that may lie beside the weights.
TOKENIZER_FILES = ("vocab.txt", "spiece.model", "tokenizer.json", "tokenizer_config.json")

# Sizes that show in a tensor: our key -> BERT-base's, for weights in which the tensor is missing.
_USUAL_SIZES = {"vocab_size": 30522, "length": 512, "token_types": 2, "d_ffn": 3072}
# What config.json calls the number of layers: DistilBERT has the second name.
_LAYER_COUNTS = ("num_hidden_layers", "n_layers")
# The values that our models allow in every config.json.
_ALLOWED = {"tie_word_embeddings": (True, False)}
# Tensors of a head for pairs of sentences, and those that our model computes.
_LEFT_OUT = re.compile(r"cls\.seq_relationship\.|.*(_ids|dft_mat_\w+|rotary_emb\.inv_freq)$")
# TensorFlow's names of the two tensors of a norm, in the first models.
_OLD_NAMES = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}


def open_described(path: str, described: Mapping[str, Any]) -> SavedModel:
    """A language model of FAMILIES.

    Args:
        path: of its weights, beside which the tokenizer lies.
        described: what config.json beside them says, whose `model_type` is a family's.

    Raises:
        UserError: the weights are of another model, or a file is missing, damaged or too large.
    """
    family = described["model_type"]
    shapes = renamed(weight_files.shapes(path), _OLD_NAMES)
    config = config_for(family, shapes, described, path)
    folder = os.path.dirname(path) or "."
    tokenizer = _tokenizer_in(folder, FAMILIES[family].tokenizer, config.model.vocab_size)
    config.data.train = ""

    def read() -> dict[str, Any]:
        state = renamed(weight_files.read(path), _OLD_NAMES)
        return from_transformers(family, state, config, path)

    return SavedModel(path, config, {TOKENIZER_FILE: tokenizer.model}, read)


def _tokenizer_in(folder: str, preferred: str, rows: int) -> Tokenizer:
    """The tokenizer in a folder, of weights with so many rows of embeddings: the preferred file if
    it is there."""
    source = folder
    if preferred and files.exists(files.join(folder, preferred)):
        source = files.join(folder, preferred)
    tokenizer = Tokenizer.load(source)
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
    known = FAMILIES[family]
    config = config_lib.default(task=known.task, block=known.block)
    config.model.update(known.model)
    config.model.tie_embeddings = bool(described.get("tie_word_embeddings", known.tied))
    what = f"{where}: its config.json describes no {family} that gmlp_flax has"
    with decode_errors(what, "give another model", RunError):
        shapes = _split_fused(known, shapes, _halves_of_shape)
        sizes = _sizes(known, shapes, described)
        config.model.update(known.described(described))
    if not sizes:
        names = listed(sorted(shapes), 3) or "nothing"
        raise RunError(
            f"{where} holds no model that transformers calls {family} (it has {names}): give "
            "another file"
        )
    _refuse_other_layers(sizes["layers"], described, where)
    config.model.update(sizes)
    if "pooler" in config.model:
        config.model.pooler = known.pooler in shapes
    try:
        config_lib.validate(config)
    except ConfigError as error:
        raise ConfigError(f"{where} has sizes that do not fit together: {error}") from None
    return config


def _refuse_other_models(family: str, described: Mapping[str, Any], where: str) -> None:
    allowed = {**_ALLOWED, **FAMILIES[family].allowed, "model_type": (family,)}
    other = {}
    for key, value in described.items():
        if key in allowed and value not in allowed[key]:
            other[key] = value
    if other:
        raise RunError(
            f"{where}: its config.json has {other}, and our {family} has no such model: give "
            "another"
        )


def _refuse_other_layers(layers: int, described: Mapping[str, Any], where: str) -> None:
    """Raises RunError if config.json has another number of layers than the weights: some files of
    the weights may be missing."""
    for key in _LAYER_COUNTS:
        number = described.get(key, layers)
        if number != layers:
            raise RunError(
                f"{where} has {layers} layers, and its config.json says {key}={number}: download "
                "all files of the weights again"
            )


def _sizes(
    family: Family, shapes: Mapping[str, Shape], described: Mapping[str, Any]
) -> dict[str, int]:
    """The keys of config.model that the shapes say; empty for another model."""
    tables = family.tables
    by_key = {"vocab_size": tables.words, "length": tables.positions, "token_types": tables.types}
    sizes = {}
    width = 0
    for key, table in by_key.items():
        if not table:
            continue
        sizes[key] = _USUAL_SIZES[key]
        shape = shapes.get(table, ())
        if len(shape) == 2:
            rows, columns = shape
            sizes[key] = rows
            width = width or columns
    if not width:
        return {}
    if tables.positions in shapes:
        sizes["length"] -= family.missing_rows(described)
    sizes["d_model"] = width
    sizes["d_ffn"] = _USUAL_SIZES["d_ffn"]
    inner = shapes.get(tables.inner, ())
    if inner:
        sizes["d_ffn"] = inner[0]
    sizes["layers"] = _layer_count(family.layer, shapes)
    return sizes


def _layer_count(beginning: str, shapes: Mapping[str, Shape]) -> int:
    """The number of layers; the names of their tensors begin so, and go on with their number."""
    pattern = re.compile(rf"{re.escape(beginning)}(\d+)\.")
    matches = map(pattern.match, shapes)
    numbers = {match[1] for match in matches if match}
    return len(numbers)


def _split_fused(
    family: Family, tensors: Mapping[str, T], halves: Callable[[T], tuple[T, T]]
) -> dict[str, T]:
    """Tensors, or their shapes, with two in place of each that is two of ours, one after the
    other."""
    first_end, second_end = HALVES
    split = {}
    for name, value in tensors.items():
        if name.endswith(family.fused):
            first, second = halves(value)
            split[name + first_end] = first
            split[name + second_end] = second
        else:
            split[name] = value
    return split


def _halves_of_shape(shape: Shape) -> tuple[Shape, Shape]:
    rows, *others = shape
    half = (rows // 2, *others)
    return half, half


def _halves_of_array(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = len(array) // 2
    return array[:half], array[half:]


def from_transformers(family: str, state: State, config: ConfigDict, where: str) -> dict[str, Any]:
    """A state dict as our parameters, a nested dict of arrays.

    The bias of the logits may have the name of the layer that it is tied to; if the logits are not
    tied to the embedding, that layer's bias is the one that counts. Models without one get zeros.

    Args:
        family: a key of FAMILIES.
        state: the tensors.
        config: of the model, as `config_for` makes it.
        where: the source of the weights, for messages.

    Raises:
        RunError: weights are missing, unexpected, of another shape or not finite, or the logits
            have weights of their own and the config has none.
    """
    known = FAMILIES[family]
    decoder = f"{known.head.decoder}."
    kept = {}
    for name, value in state.items():
        if not _LEFT_OUT.match(name) and not name.startswith(decoder):
            kept[name] = value
    tensors = _split_fused(known, kept, _halves_of_array)
    positions = known.tables.positions
    if positions in tensors and tensors[positions].ndim == 2:
        length = config.model.length
        tensors[positions] = tensors[positions][-length:]
    weight_name = f"{decoder}weight"
    if config.model.tie_embeddings:
        _require_tied(known, state, where)
    elif weight_name in state:
        tensors[weight_name] = state[weight_name]
    _add_bias_of_logits(known, tensors, state, config)
    kind = tasks.find(config.task)
    like = kind(config).shapes()
    return from_torch(tensors, known.rows(config), like, where)


def _add_bias_of_logits(family: Family, tensors: State, state: State, config: ConfigDict) -> None:
    """Adds the bias of the logits to `tensors` if `from_transformers` reads it from the layer of the
    logits, or makes zeros."""
    name = family.head.bias
    bias = state.get(f"{family.head.decoder}.bias")
    is_missing = name not in tensors
    if bias is not None and (is_missing or not config.model.tie_embeddings):
        tensors[name] = bias
    elif is_missing and not family.head.needs_bias:
        tensors[name] = np.zeros(config.model.vocab_size, np.float32)


def _require_tied(family: Family, state: State, where: str) -> None:
    """Raises RunError if the logits have other weights than the embedding."""
    name = f"{family.head.decoder}.weight"
    weight = state.get(name)
    words = state.get(family.tables.words)
    if weight is None or words is None or np.array_equal(weight, words):
        return
    raise RunError(
        f"{where}: {name} is not the embedding, to which the logits are tied unless its "
        "config.json has tie_word_embeddings false: give another, or say so there"
    )
