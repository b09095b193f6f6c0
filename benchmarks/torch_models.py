"""Masked language models of the package transformers, in torch, in the sizes of ours (extra `parity`).

They are somebody else's Transformers, and somebody else's optimizer trains them: what ours are held against.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.interop.timm import import_beside_torch


class TorchModel(NamedTuple):
    """A masked language model in torch.

    Attributes:
        model: the torch.nn.Module with all parameters.
        encode: token ids, int64 [batch, tokens] -> states [batch, tokens, d_model].
        head: states [..., d_model] -> logits [..., vocab_size].
    """

    model: Any
    encode: Callable[[Any], Any]
    head: Callable[[Any], Any]

    def logits(self, tokens: Any, positions: Any) -> Any:
        """Logits [batch, predictions, vocab_size] at some positions, int64 [batch, predictions], of each sequence."""
        states = self.encode(tokens)
        places = positions[..., None].expand(-1, -1, states.shape[-1])
        return self.head(states.gather(1, places))

    def groups(self, weight_decay: float, bias_factor: float) -> list[dict[str, Any]]:
        """What trains, in groups for torch.optim: matrices decay; biases on the logits of attention have a `factor` on
        the learning rate, all others 1."""
        groups: dict[tuple[float, float], list[Any]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                decays = parameter.ndim > 1 and "position_embeddings" not in name and "relative" not in name
                key = weight_decay if decays else 0.0, bias_factor if "relative" in name else 1.0
                groups.setdefault(key, []).append(parameter)
        return [{"params": group, "weight_decay": decay, "factor": factor} for (decay, factor), group in groups.items()]


def bert(config: ConfigDict, params: Any = None) -> TorchModel:
    """BertForMaskedLM, with learned positions, from its own initial values; `params` is not used."""
    made = _make("Bert", config, type_vocab_size=1)
    _hold_at_zero(made.bert.embeddings.token_type_embeddings)
    return _with_positions(made, made.bert, made.cls, config)


def mpnet(config: ConfigDict, params: Any = None) -> TorchModel:
    """MPNetForMaskedLM from its own initial values: BERT with T5's relative bias, in 32 buckets and shared by all
    layers; its learned positions are held at zero. `params` is not used."""
    made = _make("MPNet", config)
    _hold_at_zero(made.mpnet.embeddings.position_embeddings)
    made.mpnet.embeddings.word_embeddings.padding_idx = None  # else the token with id 1 would not train
    return _with_positions(made, made.mpnet, made.lm_head, config)


def prenorm(config: ConfigDict, params: Any) -> TorchModel:
    """RobertaPreLayerNormForMaskedLM with our parameters.

    With model.embedding_norm and model.transform it is our Transformer, layer by layer. It has no relative positions:
    if ours has, each layer of attention is given our bias, through the argument that masks padding.

    Args:
        config: of our model.
        params: its parameters, nested.
    """
    import torch

    made = _make("RobertaPreLayerNorm", config, type_vocab_size=1)
    base, relative = made.roberta_prelayernorm, config.model.positions == "relative"
    _hold_at_zero(base.embeddings.token_type_embeddings)
    if relative:
        _hold_at_zero(base.embeddings.position_embeddings)
        for layer in base.encoder.layer:
            _add_relative_bias(layer.attention.self, config)
    found = prenorm_state(params)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.tensor(np.asarray(found.pop(name))))
    if found:
        raise AssertionError(f"the model in torch has no {sorted(found)}")
    return _with_positions(made, base, made.lm_head, config)


def prenorm_state(params: Any) -> dict[str, np.ndarray]:
    """Our parameters by their names in RobertaPreLayerNormForMaskedLM, without those that `prenorm` holds at zero."""
    base, blocks = "roberta_prelayernorm.", params["encoder"]["blocks"]
    found = {
        f"{base}embeddings.word_embeddings.weight": params["embedding"],
        **_norm(f"{base}embeddings.LayerNorm", params["embedding_norm"]),
        **_norm(f"{base}LayerNorm", params["encoder"]["norm"]),
        **_linear("lm_head.dense", params["transform"]),
        **_norm("lm_head.layer_norm", params["transform_norm"]),
        "lm_head.bias": params["bias"],
    }
    if "positions" in params:
        found[f"{base}embeddings.position_embeddings.weight"] = params["positions"]["table"]
    for number in range(len(blocks["attention_norm"]["scale"])):
        layer, at = jax.tree.map(lambda x: x[number], blocks), f"{base}encoder.layer.{number}."  # noqa: B023
        attention = layer["attention"]
        thirds = {name: np.split(np.asarray(value), 3, axis=-1) for name, value in attention["proj_in"].items()}
        for place, name in enumerate(("query", "key", "value")):
            found |= _linear(f"{at}attention.self.{name}", {part: values[place] for part, values in thirds.items()})
        if "relative" in attention:
            found[f"{at}attention.self.relative_bias"] = attention["relative"]["bias"]
        found |= _linear(f"{at}attention.output.dense", attention["out"])
        found |= _norm(f"{at}attention.LayerNorm", layer["attention_norm"])
        found |= _norm(f"{at}intermediate.LayerNorm", layer["mlp_norm"])
        found |= _linear(f"{at}intermediate.dense", layer["mlp"]["proj_in"])
        found |= _linear(f"{at}output.dense", layer["mlp"]["proj_out"])
    return found


def _make(family: str, config: ConfigDict, **more: Any) -> Any:
    """A masked language model of a family, in the sizes of ours, without dropout; its random numbers are those of
    config.seed."""
    transformers = import_beside_torch("transformers")
    import torch

    ours = config.model
    settings = getattr(transformers, f"{family}Config")(
        vocab_size=ours.vocab_size,
        hidden_size=ours.d_model,
        num_hidden_layers=ours.layers,
        num_attention_heads=ours.heads,
        intermediate_size=ours.d_ffn,
        max_position_embeddings=ours.length,
        layer_norm_eps=ours.norm_eps,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,  # else the embedding of that token would not train
        attn_implementation="eager",
        **more,
    )
    torch.manual_seed(config.seed)
    return getattr(transformers, f"{family}ForMaskedLM")(settings)


def _with_positions(made: Any, base: Any, head: Any, config: ConfigDict) -> TorchModel:
    """Numbers positions from 0: models in the manner of RoBERTa begin after the id of padding."""
    import torch

    positions = torch.arange(config.model.length)[None]
    return TorchModel(made, lambda tokens: base(tokens, position_ids=positions[:, : tokens.shape[1]])[0], head)


def _hold_at_zero(embedding: Any) -> None:
    """Takes away an embedding that ours does not have."""
    embedding.weight.data.zero_()
    embedding.weight.requires_grad_(False)


def _add_relative_bias(attention: Any, config: ConfigDict) -> None:
    """Adds `relative_bias` [heads, 2n - 1] to the logits of a layer's attention: the bias of key j for query i stands
    at n - 1 + j - i."""
    import torch

    n = config.model.length
    places = torch.arange(n)[None, :] - torch.arange(n)[:, None] + n - 1
    attention.register_parameter("relative_bias", torch.nn.Parameter(torch.zeros(config.model.heads, 2 * n - 1)))

    def masked(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tokens = args[0].shape[1]
        return args, kwargs | {"attention_mask": module.relative_bias[:, places[:tokens, :tokens]][None]}

    attention.register_forward_pre_hook(masked, with_kwargs=True)


def _linear(name: str, of: Any) -> dict[str, np.ndarray]:
    return {f"{name}.weight": np.asarray(of["kernel"]).T, f"{name}.bias": np.asarray(of["bias"])}


def _norm(name: str, of: Any) -> dict[str, np.ndarray]:
    return {f"{name}.weight": np.asarray(of["scale"]), f"{name}.bias": np.asarray(of["bias"])}
