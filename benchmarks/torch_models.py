"""Masked language models of the package transformers, in torch and in the sizes of ours (extra
`parity`): independent Transformers, trained by an independent optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.benchmarks.beside_torch import import_beside_torch

LAYER = "roberta_prelayernorm.encoder.layer"


@dataclasses.dataclass(frozen=True)
class TorchModel:
    """A masked language model in torch.

    Attributes:
        model: the torch.nn.Module with all parameters.
        encode: token ids, int64 [batch, tokens], to states [batch, tokens, d_model].
        head: states [..., d_model] to logits [..., vocab_size].
    """

    model: Any
    encode: Callable[[Any], Any]
    head: Callable[[Any], Any]

    def logits(self, tokens: Any, positions: Any) -> Any:
        """Logits [batch, predictions, vocab_size] at some positions of each sequence.

        Args:
            tokens: int64 [batch, tokens].
            positions: int64 [batch, predictions].
        """
        states = self.encode(tokens)
        channels = states.shape[-1]
        indices = positions[..., None].expand(-1, -1, channels)
        chosen = states.gather(1, indices)
        return self.head(chosen)

    def groups(self, weight_decay: float, bias_factor: float) -> list[dict[str, Any]]:
        """The trainable parameters, in groups for torch.optim, each with its "factor" on the
        learning rate.

        Args:
            weight_decay: of matrices; vectors, positions and relative biases have none.
            bias_factor: the factor of relative biases; all others have 1.
        """
        groups: dict[tuple[float, float], list[Any]] = {}
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                continue
            is_relative = "relative" in name
            is_matrix = parameter.ndim > 1
            decays = is_matrix and not is_relative and "position_embeddings" not in name
            decay = weight_decay if decays else 0.0
            factor = bias_factor if is_relative else 1.0
            members = groups.setdefault((decay, factor), [])
            members.append(parameter)
        rows = []
        for (decay, factor), parameters in groups.items():
            rows.append({"params": parameters, "weight_decay": decay, "factor": factor})
        return rows


def bert(config: ConfigDict, params: Any = None) -> TorchModel:
    """BertForMaskedLM, with learned positions, from its own initial values; `params` is not
    read."""
    model = _make("Bert", config, type_vocab_size=1)
    _hold_at_zero(model.bert.embeddings.token_type_embeddings)
    return _with_positions(model, model.bert, model.cls, config)


def mpnet(config: ConfigDict, params: Any = None) -> TorchModel:
    """MPNetForMaskedLM from its own initial values: BERT with T5's relative bias, in 32 buckets that
    all layers share; its learned positions are held at zero. `params` is not read."""
    model = _make("MPNet", config)
    _hold_at_zero(model.mpnet.embeddings.position_embeddings)
    # else the token with id 1 would not train
    model.mpnet.embeddings.word_embeddings.padding_idx = None
    return _with_positions(model, model.mpnet, model.lm_head, config)


def prenorm(config: ConfigDict, params: Any) -> TorchModel:
    """RobertaPreLayerNormForMaskedLM with our parameters.

    With model.embedding_norm and model.transform it is our Transformer, layer by layer. It has no
    relative positions: if ours has, each layer of attention gets our bias through the argument that
    masks padding.

    Args:
        config: the config of our model.
        params: its parameters, nested.
    """
    import torch

    model = _make("RobertaPreLayerNorm", config, type_vocab_size=1)
    base = model.roberta_prelayernorm
    _hold_at_zero(base.embeddings.token_type_embeddings)
    if config.model.positions == "relative":
        _hold_at_zero(base.embeddings.position_embeddings)
        for layer in base.encoder.layer:
            _add_relative_bias(layer.attention.self, config)
    state = prenorm_state(params)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                values = np.asarray(state.pop(name))
                parameter.copy_(torch.tensor(values))
    if state:
        names = sorted(state)
        raise AssertionError(f"the model in torch has no {names}")
    return _with_positions(model, base, model.lm_head, config)


def prenorm_state(params: Any) -> dict[str, np.ndarray]:
    """Our parameters by their names in RobertaPreLayerNormForMaskedLM, without those that `prenorm`
    holds at zero."""
    base = "roberta_prelayernorm"
    encoder = params["encoder"]
    state = {f"{base}.embeddings.word_embeddings.weight": params["embedding"]}
    state |= _norm(f"{base}.embeddings.LayerNorm", params["embedding_norm"])
    state |= _norm(f"{base}.LayerNorm", encoder["norm"])
    state |= _linear("lm_head.dense", params["transform"])
    state |= _norm("lm_head.layer_norm", params["transform_norm"])
    state["lm_head.bias"] = params["bias"]
    if "positions" in params:
        table = params["positions"]["table"]
        state[f"{base}.embeddings.position_embeddings.weight"] = table
    layers = len(encoder["blocks"]["attention_norm"]["scale"])
    for number in range(layers):
        layer = jax.tree.map(lambda leaf: leaf[number], encoder["blocks"])  # noqa: B023
        state |= _layer_state(f"{LAYER}.{number}", layer)
    return state


def _layer_state(prefix: str, layer: Any) -> dict[str, np.ndarray]:
    """The parameters of one layer, by their names with a prefix."""
    mlp = layer["mlp"]
    state = _attention_state(f"{prefix}.attention", layer["attention"])
    state |= _norm(f"{prefix}.attention.LayerNorm", layer["attention_norm"])
    state |= _norm(f"{prefix}.intermediate.LayerNorm", layer["mlp_norm"])
    state |= _linear(f"{prefix}.intermediate.dense", mlp["proj_in"])
    state |= _linear(f"{prefix}.output.dense", mlp["proj_out"])
    return state


def _attention_state(prefix: str, attention: Any) -> dict[str, np.ndarray]:
    """The parameters of a layer's attention, by their names with a prefix."""
    qkv = attention["proj_in"]
    kernel = np.asarray(qkv["kernel"])
    bias = np.asarray(qkv["bias"])
    kernels = np.split(kernel, 3, axis=-1)
    biases = np.split(bias, 3, axis=-1)
    state: dict[str, np.ndarray] = {}
    for index, name in enumerate(("query", "key", "value")):
        projection = {"kernel": kernels[index], "bias": biases[index]}
        state |= _linear(f"{prefix}.self.{name}", projection)
    if "relative" in attention:
        state[f"{prefix}.self.relative_bias"] = attention["relative"]["bias"]
    state |= _linear(f"{prefix}.output.dense", attention["out"])
    return state


def _make(family: str, config: ConfigDict, **options: Any) -> Any:
    """A masked language model of a family, in the sizes of ours, without dropout; config.seed
    determines its random numbers."""
    transformers = import_beside_torch("transformers")
    import torch

    sizes = config.model
    config_class = getattr(transformers, f"{family}Config")
    settings = config_class(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.d_model,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.d_ffn,
        max_position_embeddings=sizes.length,
        layer_norm_eps=sizes.norm_eps,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,  # else the embedding of that token would not train
        attn_implementation="eager",
        **options,
    )
    torch.manual_seed(config.seed)
    model_class = getattr(transformers, f"{family}ForMaskedLM")
    return model_class(settings)


def _with_positions(model: Any, base: Any, head: Any, config: ConfigDict) -> TorchModel:
    """Numbers positions from 0: models like RoBERTa start after the id of padding."""
    import torch

    positions = torch.arange(config.model.length)[None]

    def encode(tokens: Any) -> Any:
        """See TorchModel."""
        _, length = tokens.shape
        used = positions[:, :length]
        outputs = base(tokens, position_ids=used)
        return outputs[0]

    return TorchModel(model, encode, head)


def _hold_at_zero(embedding: Any) -> None:
    """Disables an embedding that ours does not have."""
    embedding.weight.data.zero_()
    embedding.weight.requires_grad_(False)


def _add_relative_bias(attention: Any, config: ConfigDict) -> None:
    """Adds `relative_bias` [heads, 2n - 1] to the logits of a layer's attention: the bias of key j
    for query i has the index n - 1 + j - i."""
    import torch

    n = config.model.length
    positions = torch.arange(n)
    offsets = positions[None, :] - positions[:, None]
    indices = offsets + n - 1
    zeros = torch.zeros(config.model.heads, 2 * n - 1)
    bias = torch.nn.Parameter(zeros)
    attention.register_parameter("relative_bias", bias)

    def add_bias(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Passes the bias as the mask."""
        states, *_ = args
        tokens = states.shape[1]
        indices_of_pairs = indices[:tokens, :tokens]
        bias_of_pairs = module.relative_bias[:, indices_of_pairs]
        mask = bias_of_pairs[None]
        return args, kwargs | {"attention_mask": mask}

    attention.register_forward_pre_hook(add_bias, with_kwargs=True)


def _linear(name: str, layer: Mapping[str, Any]) -> dict[str, np.ndarray]:
    kernel = np.asarray(layer["kernel"])
    bias = np.asarray(layer["bias"])
    return {f"{name}.weight": kernel.T, f"{name}.bias": bias}


def _norm(name: str, layer: Mapping[str, Any]) -> dict[str, np.ndarray]:
    scale = np.asarray(layer["scale"])
    bias = np.asarray(layer["bias"])
    return {f"{name}.weight": scale, f"{name}.bias": bias}
