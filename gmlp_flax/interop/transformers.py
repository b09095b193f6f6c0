"""Masked language models as the package transformers saves them (BERT, FNet), as models of ours."""

import os
import re
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import RunError, decode_errors, listed
from gmlp_flax.interop.timm import LINEAR, NORM, PACKED, SINGLE, Row, Tensors, from_torch, renamed
from gmlp_flax.io import weight_files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.paper import recipes
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.vocabulary import TOKENIZER_FILE

HEAD = "cls.predictions"
BIAS, DECODER = f"{HEAD}.bias", f"{HEAD}.decoder"
# What the model of masked tokens has not, has elsewhere, or computes.
LEFT_OUT = re.compile(r"cls\.seq_relationship\.|cls\.predictions\.decoder\.|.*(_ids|dft_mat_\w+)$")
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
# What our model allows in config.json, besides the family's own name.
ALLOWED = {
    "hidden_act": tuple(ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
}
ALLOWED |= {"tie_word_embeddings": (True, False)}


def _rows(base: str, own: dict[str, tuple[str, Tensors]]) -> list[Row]:
    shared = own | {
        f"{base}.embeddings.word_embeddings.weight": ("embedding", SINGLE),
        f"{base}.embeddings.position_embeddings.weight": ("positions/table", SINGLE),
        f"{base}.embeddings.token_type_embeddings.weight": ("segments/table", SINGLE),
        f"{base}.embeddings.LayerNorm": ("embedding_norm", NORM),
        f"{base}.encoder.layer.*.intermediate.dense": ("encoder/blocks/mlp/proj_in", LINEAR),
        f"{base}.encoder.layer.*.output.dense": ("encoder/blocks/mlp/proj_out", LINEAR),
        f"{base}.encoder.layer.*.output.LayerNorm": ("encoder/blocks/mlp_norm", NORM),
        f"{base}.pooler.dense": ("pooler", LINEAR),
        f"{HEAD}.transform.dense": ("transform", LINEAR),
        f"{HEAD}.transform.LayerNorm": ("transform_norm", NORM),
        f"{DECODER}.weight": ("output_embedding", SINGLE),
        BIAS: ("bias", SINGLE),
    }
    return [Row(theirs, ours, tensors) for theirs, (ours, tensors) in shared.items()]


_BERT = {
    "bert.encoder.layer.*.attention.self.query": ("encoder/blocks/attention/proj_in", PACKED[0]),
    "bert.encoder.layer.*.attention.self.key": ("encoder/blocks/attention/proj_in", PACKED[1]),
    "bert.encoder.layer.*.attention.self.value": ("encoder/blocks/attention/proj_in", PACKED[2]),
    "bert.encoder.layer.*.attention.output.dense": ("encoder/blocks/attention/out", LINEAR),
    "bert.encoder.layer.*.attention.output.LayerNorm": ("encoder/blocks/attention_norm", NORM),
}
_FNET = {
    "fnet.embeddings.projection": ("embedding_projection", LINEAR),
    "fnet.encoder.layer.*.fourier.output.LayerNorm": ("encoder/blocks/mixing_norm", NORM),
}
# what both have
FRAME = {"norm": "post", "embedding_norm": True, "transform": True, "mask_padding": True}
# of embeddings: key of their rows
TABLES = {"vocab_size": "word", "length": "position", "token_types": "token_type"}
TOKENIZER_FILES = ("vocab.txt", "spiece.model", "tokenizer.json", "tokenizer_config.json")
# the names of their tensors
FAMILIES = {"bert": _rows("bert", _BERT), "fnet": _rows("fnet", _FNET)}


def config_for(
    name: str, state: dict[str, np.ndarray], described: dict[str, Any], where: str
) -> ConfigDict:
    """The config of the model of FAMILIES that some weights, name -> array, belong to: sizes are
    those of the shapes, the rest is config.json's (`described`, empty without one). `where` is the
    source of the weights, for messages.

    Raises:
        RunError, ConfigError: the weights are not of this family, or config.json asks for what our
            model has not.
    """
    tables = {key: f"{name}.embeddings.{table}_embeddings.weight" for key, table in TABLES.items()}
    shapes = {
        key: state[table].shape
        for key, table in tables.items()
        if table in state and state[table].ndim == 2
    }
    if not shapes:
        names = listed(sorted(state), 3) or "nothing"
        raise RunError(
            f"{where} holds no model that transformers calls {name} (it has {names}): give another file"
        )
    # else BERT-base's
    sizes = {"token_types": 2} | {key: rows for key, (rows, _) in shapes.items()}
    sizes["d_model"] = next(iter(shapes.values()))[1]
    if (bias := state.get(f"{name}.encoder.layer.0.intermediate.dense.bias")) is not None:
        sizes["d_ffn"] = bias.size
    layers = len(
        {match[1] for key in state if (match := re.match(rf"{name}\.encoder\.layer\.(\d+)\.", key))}
    )
    allowed = ALLOWED | {"model_type": (name,)}
    if other := {
        key: value for key, value in described.items() if value not in allowed.get(key, (value,))
    }:
        raise RunError(
            f"{where}: its config.json has {other}, and our {name} has no such model: give another"
        )
    config = recipes.language_model(f"{name}_base")
    config.model.update(sizes | FRAME, layers=layers)
    config.model.activation = ACTIVATIONS.get(
        described.get("hidden_act", ""), config.model.activation
    )
    config.model.tie_embeddings = bool(described.get("tie_word_embeddings", True))
    config.model.pooler = f"{name}.pooler.dense.weight" in state
    with decode_errors(
        f"{where}: its config.json", "expected num_attention_heads and layer_norm_eps", RunError
    ):
        config.model.norm_eps = float(described.get("layer_norm_eps", 1e-12))
        if "heads" in config.model:
            config.model.heads = described["num_attention_heads"]
    gmlp_config.validate(config)
    return config


def from_transformers(
    name: str, state: dict[str, np.ndarray], config: ConfigDict, where: str
) -> dict:
    """A state dict as our parameters; `name` is a key of FAMILIES. The bias of the logits may have
    the name of the layer that it is tied to; if the logits are not tied to the embedding, that
    layer's bias is the one that counts.

    Raises:
        RunError: weights are missing, unexpected or of another shape, or the logits have weights of
            their own and the config has none; the message names the source, `where`.
    """
    decoder = {BIAS: state[f"{DECODER}.bias"]} if f"{DECODER}.bias" in state else {}
    ours = decoder | {key: value for key, value in state.items() if not LEFT_OUT.match(key)}
    weight, words = (
        state.get(f"{DECODER}.weight"),
        state.get(f"{name}.embeddings.word_embeddings.weight"),
    )
    if not config.model.tie_embeddings:
        ours |= decoder | ({} if weight is None else {f"{DECODER}.weight": weight})
    elif weight is not None and words is not None and not np.array_equal(weight, words):
        what = f"{DECODER}.weight is not the embedding, to which the logits are tied unless its config.json"
        raise RunError(
            f"{where}: {what} has tie_word_embeddings false: give another, or say so there"
        )
    return from_torch(
        ours, FAMILIES[name], MaskedLanguageModeling.without_data(config).shapes(), where
    )


def read(name: str, path: str) -> tuple[MaskedLanguageModeling, dict]:
    """The task and the parameters, a nested dict of numpy arrays, of a model of FAMILIES: a folder
    with config.json, the weights (`weight_files.WEIGHTS`) and the tokenizer, or the weights in it;
    or such a folder on the hub.

    Raises:
        UserError: the weights are of another model, or a file is missing, damaged or too large.
    """
    state, described, where = weight_files.read_folder(path)
    # TensorFlow's names of the two tensors of a norm, in the first models.
    state = renamed(state, {r"\.gamma$": ".weight", r"\.beta$": ".bias"})
    config = config_for(name, state, described, where)
    params = from_transformers(name, state, config, where)
    if path.startswith(weight_files.HUB):
        for file in TOKENIZER_FILES:
            weight_files.fetch(
                path.removeprefix(weight_files.HUB),
                file,
                weight_files.commit_of(where),
                optional=True,
            )
    folder = os.path.dirname(where) or "."
    tokenizer = Tokenizer.load(folder)
    if tokenizer.note:
        to_stderr(tokenizer.note)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise RunError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} pieces, the weights have {config.model.vocab_size} "
            "rows: give the tokenizer of these weights"
        )
    config.data.train = ""
    return MaskedLanguageModeling.without_data(config, {TOKENIZER_FILE: tokenizer.model}), params
