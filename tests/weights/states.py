"""Weights as torch's packages name them, made of our parameters, for models that are tiny."""

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

# Keys of config.model for a model of timm whose weights are written in no time.
TINY = {"layers": 2, "d_model": 8, "d_ffn": 16, "image_size": (16, 16), "patch_size": (4, 4)}
# Those of a BERT or FNet.
SIZES = {"layers": 2, "d_model": 8, "d_ffn": 12, "length": 32, "vocab_size": 320}
# The bias of their logits.
BIAS = "cls.predictions.bias"
# config.json of transformers.
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
    """Our parameters under torch's names and in its layouts: the exact inverse of
    `state_dicts.from_torch`."""
    flat = {}
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        flat[path] = np.asarray(leaf)
    views = torch_views(flat, rows)
    return {name: np.ascontiguousarray(view) for name, view in views.items()}


def random(shapes: dict, seed: int = 0) -> dict:
    """Parameters of these shapes, every number another."""
    numbers = np.random.default_rng(seed)

    def draw(leaf):
        return (0.3 * numbers.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree.map(draw, shapes)


def write(path: str | os.PathLike, state: State) -> None:
    """Writes a .safetensors file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors.numpy.save(state))


# timm


def shrink(monkeypatch, name: str, **model) -> str:
    """Makes a model of timm's tiny, with other keys of config.model, too; returns its name."""
    row = timm.MODELS[name]
    monkeypatch.setitem(timm.MODELS, name, row._replace(model={**row.model, **TINY, **model}))
    return name


def of_timm(name: str, classes: int, seed: int = 0) -> tuple[State, dict]:
    """A state dict of a model of timm's, and our parameters with the same numbers."""
    task = ImageClassification(timm.config_for(name), imagenet.class_files(classes))
    params = random(task.shapes(), seed)
    return to_torch(params, timm.MODELS[name].rows), params


# transformers


def of_transformers(family: str = "fnet") -> tuple[State, dict]:
    """A state dict of a tiny BERT or FNet with a pooler, and our parameters with the same
    numbers."""
    config = _masked_lm(family)
    params = random(MaskedLanguageModeling(config).shapes())
    return to_torch(params, FAMILIES[family].rows(config)), params


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
    """As BertForPreTraining and FNetForPreTraining are saved, by older versions of transformers."""
    return {
        **state,
        f"{family}.embeddings.position_ids": np.arange(32)[None],
        "cls.seq_relationship.weight": np.ones((2, 8), np.float32),
        "cls.seq_relationship.bias": np.ones(2, np.float32),
        "cls.predictions.decoder.weight": state[words(family)],
        "cls.predictions.decoder.bias": state[BIAS],
    }


def write_transformers(folder: Path, family: str, state: State) -> None:
    """A folder as transformers saves it, without a tokenizer."""
    write(folder / "model.safetensors", state)
    (folder / "config.json").write_text(json.dumps(DESCRIBED[family]))


def write_vocabulary(folder: Path, texts: Sequence[str]) -> None:
    """A WordPiece vocabulary of 320 pieces at most: special tokens, then characters, then the words
    of some texts."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for code in range(33, 127):
        letter = chr(code)
        if letter.isupper():
            continue
        pieces += [letter, f"##{letter}"]
    for text in texts:
        pieces += text.lower().split()
    different = list(dict.fromkeys(pieces))
    (folder / "vocab.txt").write_text("\n".join(different[: SIZES["vocab_size"]]) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
