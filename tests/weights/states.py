"""Weights of tiny models in the formats of other packages, made from our parameters."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax.paper import recipes
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.weights import imagenet, timm
from gmlp_flax.weights.state_dicts import Row, torch_views
from gmlp_flax.weights.transformers_models import FAMILIES, FRAME

State = dict[str, np.ndarray]

# Keys of config.model for a tiny model of timm.
TINY = {"layers": 2, "d_model": 8, "d_ffn": 16, "image_size": (16, 16), "patch_size": (4, 4)}
# Keys of a tiny BERT or FNet.
SIZES = {"layers": 2, "d_model": 8, "d_ffn": 12, "length": 32, "vocab_size": 320}
# The name of the bias of the logits.
BIAS = "cls.predictions.bias"
# The content of config.json in transformers.
DESCRIBED = {
    "bert": {
        "model_type": "bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "num_attention_heads": 2,
    },
    "fnet": {"model_type": "fnet", "hidden_act": "gelu_new"},
}


def to_torch(params: dict, rows: Sequence[Row]) -> State:
    """Our parameters with torch's names and layouts, the exact inverse of `state_dicts.from_torch`."""
    flat = {}
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        flat[path] = np.asarray(leaf)
    views = torch_views(flat, rows)
    return {name: np.ascontiguousarray(view) for name, view in views.items()}


def random(shapes: dict, seed: int = 0) -> dict:
    """Random parameters of these shapes."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        values = 0.3 * rng.normal(size=leaf.shape)
        return values.astype(np.float32)

    return jax.tree.map(draw, shapes)


def write(path: str | os.PathLike, state: State) -> None:
    """Writes a .safetensors file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors.numpy.save(state))


# timm


def shrink(monkeypatch, name: str, **model) -> str:
    """Makes a model of timm tiny, and sets further keys of config.model; returns its name."""
    row = timm.MODELS[name]
    tiny = row._replace(model={**row.model, **TINY, **model})
    monkeypatch.setitem(timm.MODELS, name, tiny)
    return name


def of_timm(name: str, classes: int, seed: int = 0) -> tuple[State, dict]:
    """A state dict of a model of timm, and our parameters with the same numbers."""
    config = timm.config_for(name)
    task = ImageClassification(config, imagenet.class_files(classes))
    params = random(task.shapes(), seed)
    state = to_torch(params, timm.MODELS[name].rows)
    return state, params


# transformers


def of_transformers(family: str = "fnet") -> tuple[State, dict]:
    """A state dict of a tiny BERT or FNet with a pooler, and our parameters with the same
    numbers."""
    config = _masked_lm(family)
    task = MaskedLanguageModeling(config)
    params = random(task.shapes())
    state = to_torch(params, FAMILIES[family].rows(config))
    return state, params


def _masked_lm(family: str) -> ConfigDict:
    config = recipes.language_model(f"{family}_base")
    config.model.update(SIZES, **FRAME, token_types=2, pooler=True)
    if "heads" in config.model:
        config.model.heads = 2
    return config


def words(family: str) -> str:
    """The name of the embedding of tokens."""
    return f"{family}.embeddings.word_embeddings.weight"


def with_heads(family: str, state: State) -> State:
    """The state of BertForPreTraining or FNetForPreTraining in older versions of transformers."""
    return {
        **state,
        f"{family}.embeddings.position_ids": np.arange(32)[None],
        "cls.seq_relationship.weight": np.ones((2, 8), np.float32),
        "cls.seq_relationship.bias": np.ones(2, np.float32),
        "cls.predictions.decoder.weight": state[words(family)],
        "cls.predictions.decoder.bias": state[BIAS],
    }


def write_transformers(folder: Path, family: str, state: State) -> None:
    """Writes a folder of transformers without a tokenizer."""
    write(folder / "model.safetensors", state)
    (folder / "config.json").write_text(json.dumps(DESCRIBED[family]))


def write_vocabulary(folder: Path, texts: Sequence[str]) -> None:
    """Writes a WordPiece vocabulary of at most 320 pieces: special tokens, characters, and the words
    of some texts."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for code in range(33, 127):
        letter = chr(code)
        if letter.isupper():
            continue
        pieces += [letter, f"##{letter}"]
    for text in texts:
        pieces += text.lower().split()
    unique = list(dict.fromkeys(pieces))
    kept = unique[: SIZES["vocab_size"]]
    (folder / "vocab.txt").write_text("\n".join(kept) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
