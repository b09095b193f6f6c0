"""FNet's weights, as the package transformers names them (`FNetForMaskedLM`, `FNetForPreTraining`), as run folders."""

import re

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import RunError
from gmlp_flax.interop import converted
from gmlp_flax.interop.timm_names import LINEAR, NORM, SINGLE, Row, from_torch
from gmlp_flax.paper import recipes
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.vocabulary import TOKENIZER_FILE

_EMBEDDINGS, _LAYER, _HEAD = "fnet.embeddings", "fnet.encoder.layer.*", "cls.predictions"
WORDS, BIAS = f"{_EMBEDDINGS}.word_embeddings.weight", f"{_HEAD}.bias"
ROWS = [
    Row(WORDS, "embedding", SINGLE),
    Row(f"{_EMBEDDINGS}.position_embeddings.weight", "positions/table", SINGLE),
    Row(f"{_EMBEDDINGS}.token_type_embeddings.weight", "segments/table", SINGLE),
    Row(f"{_EMBEDDINGS}.LayerNorm", "embedding_norm", NORM),
    Row(f"{_EMBEDDINGS}.projection", "embedding_projection", LINEAR),
    Row(f"{_LAYER}.fourier.output.LayerNorm", "encoder/blocks/mixing_norm", NORM),
    Row(f"{_LAYER}.intermediate.dense", "encoder/blocks/mlp/proj_in", LINEAR),
    Row(f"{_LAYER}.output.dense", "encoder/blocks/mlp/proj_out", LINEAR),
    Row(f"{_LAYER}.output.LayerNorm", "encoder/blocks/mlp_norm", NORM),
    Row(f"{_HEAD}.transform.dense", "transform", LINEAR),
    Row(f"{_HEAD}.transform.LayerNorm", "transform_norm", NORM),
    Row(BIAS, "bias", SINGLE),
]
# What our model has not, has elsewhere, or computes.
LEFT_OUT = re.compile(r"fnet\.pooler\.|cls\.seq_relationship\.|cls\.predictions\.decoder\.|.*(_ids|dft_mat_\w+)$")


def config_for(state: dict[str, np.ndarray], where: str) -> ConfigDict:
    """The config of the model that some weights belong to, in the sizes that their shapes give.

    Raises:
        RunError: they are no FNet's.
    """
    tables = [f"{_EMBEDDINGS}.{name}_embeddings.weight" for name in ("word", "position", "token_type")]
    try:
        (vocab_size, d_model), (length, _), (token_types, _) = (state[name].shape for name in tables)
        d_ffn = state["fnet.encoder.layer.0.intermediate.dense.bias"].size
    except (KeyError, ValueError):
        names = ", ".join(sorted(state)[:3]) or "nothing"
        raise RunError(
            f"{where} does not hold an FNet as transformers names it (it has {names}, ...): give another file"
        ) from None
    layers = len({match[1] for name in state if (match := re.match(r"fnet\.encoder\.layer\.(\d+)\.", name))})
    config = recipes.language_model("fnet_base")
    sizes = {"vocab_size": vocab_size, "d_model": d_model, "layers": layers, "d_ffn": d_ffn, "length": length}
    config.model.update(sizes, token_types=token_types)
    gmlp_config.validate(config)
    return config


def from_transformers(state: dict[str, np.ndarray], config: ConfigDict, where: str) -> dict:
    """A state dict as our parameters. The bias of the logits may have the name of the layer that it is tied to.

    Raises:
        RunError: weights are missing, unexpected or of another shape; the message names their source, `where`.
    """
    bias = {BIAS: state[f"{_HEAD}.decoder.bias"]} if f"{_HEAD}.decoder.bias" in state else {}
    ours = bias | {name: value for name, value in state.items() if not LEFT_OUT.match(name)}
    like = MaskedLanguageModeling.without_data(config).shapes()
    return from_torch(ours, ROWS, like, where)


def convert(state: dict[str, np.ndarray], tokenizer: str, out: str, where: str) -> None:
    """Writes weights as a run folder, which predicts masked tokens and which finetuning starts from.

    Args:
        state: name -> array.
        tokenizer: the path of FNet's SentencePiece model, spiece.model.
        out: the folder.
        where: the source of the weights, for messages.

    Raises:
        RunError, DataError: the weights are no FNet's, the folder holds a run or cannot be written to, or the tokenizer
            is missing, damaged or larger than the model's.
    """
    converted.require_free(out)
    config = config_for(state, where)
    params, read = from_transformers(state, config, where), Tokenizer.load(tokenizer)
    if read.vocab_size > config.model.vocab_size:
        raise RunError(
            f"--tokenizer={tokenizer} has {read.vocab_size} pieces, the weights have {config.model.vocab_size} rows: "
            "give the tokenizer of these weights"
        )
    config.data.train = ""
    converted.write(params, config, {TOKENIZER_FILE: read.model}, out)
