"""The models of the package transformers that are here: the names of their tensors, and what their
config.json says."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax.weights.state_dicts import (
    KEYS,
    LINEAR,
    NORM,
    QUERIES,
    SINGLE,
    VALUES,
    Row,
    columns,
    half_of_linear,
)

Described = Mapping[str, Any]  # the content of config.json
Model = dict[str, Any]  # keys of config.model, and their values

# What BERT and its descendants have around their blocks.
FRAME = {"norm": "post", "embedding_norm": True, "transform": True, "mask_padding": True}
# The values of their activations in config.json -> ours.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
HALVES = ("[0]", "[1]")  # ends of the names of the halves of one tensor


class Tables(NamedTuple):
    """Names of the tensors whose first axes are sizes of the model; "" if it has none.

    Attributes:
        words: the embedding, [vocabulary, d_model].
        positions: [positions, d_model]. Only its last model.length rows are read: RoBERTa's first
            two belong to no position.
        types: [kinds of text, d_model].
        inner: the layer into the first block's MLP, [d_ffn, d_model].
    """

    words: str
    positions: str = ""
    types: str = ""
    inner: str = ""


class Head(NamedTuple):
    """Names of the layer that gives the logits.

    Attributes:
        decoder: the layer, whose weight may be the embedding.
        bias: its bias.
        needs_bias: whether there is one: else it is zeros.
    """

    decoder: str
    bias: str
    needs_bias: bool = True


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one architecture.

    Attributes:
        rows: their tensors, from the config.
        block: ours.
        model: keys of config.model that neither the shapes of the tensors nor config.json say.
        tables: names of the tensors that say sizes.
        layer: beginning of the names of a layer's tensors, before its number.
        head: of the logits.
        described: the keys of config.model that config.json says.
        allowed: the keys of config.json that our model has only for some values, and these.
        task: of the model.
        tied: whether the logits are tied to the embedding unless config.json says so.
        pooler: the weight of BERT's pooler, which a model may have.
        fused: the ends of the names of tensors that are two of ours, one after the other.
        missing_rows: rows of the table of positions that belong to no position.
        tokenizer: the file of the tokenizer that is preferred to others; "" for none.
    """

    rows: Callable[[ConfigDict], list[Row]]
    block: str
    model: Mapping[str, Any]
    tables: Tables
    layer: str
    head: Head
    described: Callable[[Described], Model]
    allowed: Mapping[str, tuple]
    task: str = "masked_lm"
    tied: bool = True
    pooler: str = ""
    fused: tuple[str, ...] = ()
    missing_rows: Callable[[Described], int] = lambda described: 0
    tokenizer: str = ""


def _number(described: Described, key: str, default: float) -> float:
    """A number of config.json; raises ValueError for something else."""
    value = described.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is {value!r}")
    return float(value)


def _whole(described: Described, key: str, default: int | None = None) -> int:
    """A whole number of config.json; raises ValueError for something else."""
    value = described.get(key, default)
    if type(value) is not int:
        raise ValueError(f"{key} is {value!r}")
    return value


# BERT, RoBERTa and FNet


def _bert_rows(base: str) -> list[Row]:
    """What BERT and FNet share."""
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
    ]


def _bert_attention_rows(base: str) -> list[Row]:
    attention = f"{base}.encoder.layer.*.attention"
    return [
        Row(f"{attention}.self.query", "encoder/blocks/attention/proj_in", QUERIES),
        Row(f"{attention}.self.key", "encoder/blocks/attention/proj_in", KEYS),
        Row(f"{attention}.self.value", "encoder/blocks/attention/proj_in", VALUES),
        Row(f"{attention}.output.dense", "encoder/blocks/attention/out", LINEAR),
        Row(f"{attention}.output.LayerNorm", "encoder/blocks/attention_norm", NORM),
    ]


def _head_rows(transform: str, norm: str, head: Head) -> list[Row]:
    return [
        Row(transform, "transform", LINEAR),
        Row(norm, "transform_norm", NORM),
        Row(f"{head.decoder}.weight", "output_embedding", SINGLE),
        Row(head.bias, "bias", SINGLE),
    ]


def _described_bert(described: Described) -> Model:
    model: Model = {"norm_eps": _number(described, "layer_norm_eps", 1e-12)}
    model |= _activation(described.get("hidden_act", ""))
    return model


def _described_bert_with_heads(described: Described) -> Model:
    return {**_described_bert(described), "heads": _whole(described, "num_attention_heads")}


def _activation(name: str) -> Model:
    """The key of an activation; nothing for a name that is missing."""
    if name not in ACTIVATIONS:
        return {}
    return {"activation": ACTIVATIONS[name]}


def _bert_tables(base: str) -> Tables:
    embeddings = f"{base}.embeddings"
    return Tables(
        words=f"{embeddings}.word_embeddings.weight",
        positions=f"{embeddings}.position_embeddings.weight",
        types=f"{embeddings}.token_type_embeddings.weight",
        inner=f"{base}.encoder.layer.0.intermediate.dense.bias",
    )


_BERT_HEAD = Head("cls.predictions.decoder", "cls.predictions.bias")
_ROBERTA_HEAD = Head("lm_head.decoder", "lm_head.bias")
_BERT_ALLOWED = {
    "hidden_act": tuple(ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
}
_BERT_MODEL = {**FRAME, "positions": "absolute", "scale_embeddings": True}


def _bert_head_rows() -> list[Row]:
    transform = "cls.predictions.transform"
    return _head_rows(f"{transform}.dense", f"{transform}.LayerNorm", _BERT_HEAD)


def _rows_of_bert(config: ConfigDict) -> list[Row]:
    return [*_bert_attention_rows("bert"), *_bert_rows("bert"), *_bert_head_rows()]


def _rows_of_fnet(config: ConfigDict) -> list[Row]:
    return [
        Row("fnet.embeddings.projection", "embedding_projection", LINEAR),
        Row("fnet.encoder.layer.*.fourier.output.LayerNorm", "encoder/blocks/mixing_norm", NORM),
        *_bert_rows("fnet"),
        *_bert_head_rows(),
    ]


def _rows_of_roberta(config: ConfigDict) -> list[Row]:
    head = _head_rows("lm_head.dense", "lm_head.layer_norm", _ROBERTA_HEAD)
    return [*_bert_attention_rows("roberta"), *_bert_rows("roberta"), *head]


def _rows_before_position_0(described: Described) -> int:
    """RoBERTa numbers positions from padding's id + 1 on."""
    return _whole(described, "pad_token_id", 1) + 1


# DistilBERT

_DISTILBERT_HEAD = Head("vocab_projector", "vocab_projector.bias")


def _rows_of_distilbert(config: ConfigDict) -> list[Row]:
    embeddings = "distilbert.embeddings"
    layer = "distilbert.transformer.layer.*"
    attention = f"{layer}.attention"
    return [
        Row(f"{embeddings}.word_embeddings.weight", "embedding", SINGLE),
        Row(f"{embeddings}.position_embeddings.weight", "positions/table", SINGLE),
        Row(f"{embeddings}.LayerNorm", "embedding_norm", NORM),
        Row(f"{attention}.q_lin", "encoder/blocks/attention/proj_in", QUERIES),
        Row(f"{attention}.k_lin", "encoder/blocks/attention/proj_in", KEYS),
        Row(f"{attention}.v_lin", "encoder/blocks/attention/proj_in", VALUES),
        Row(f"{attention}.out_lin", "encoder/blocks/attention/out", LINEAR),
        Row(f"{layer}.sa_layer_norm", "encoder/blocks/attention_norm", NORM),
        Row(f"{layer}.ffn.lin1", "encoder/blocks/mlp/proj_in", LINEAR),
        Row(f"{layer}.ffn.lin2", "encoder/blocks/mlp/proj_out", LINEAR),
        Row(f"{layer}.output_layer_norm", "encoder/blocks/mlp_norm", NORM),
        *_head_rows("vocab_transform", "vocab_layer_norm", _DISTILBERT_HEAD),
    ]


def _described_distilbert(described: Described) -> Model:
    model: Model = {"norm_eps": 1e-12, "heads": _whole(described, "n_heads")}
    return model | _activation(described.get("activation", ""))


# ModernBERT

_MODERNBERT_HEAD = Head("decoder", "decoder.bias", needs_bias=False)
_WINDOW = 128


def _rows_of_modernbert(config: ConfigDict) -> list[Row]:
    rows = [
        Row("model.embeddings.tok_embeddings.weight", "embedding", SINGLE),
        Row("model.embeddings.norm", "embedding_norm", NORM),
        Row("model.final_norm", "encoder/norm", NORM),
        *_head_rows("head.dense", "head.norm", _MODERNBERT_HEAD),
    ]
    if config.model.layers == 1:
        return rows + _modernbert_layers("encoder/blocks", 0)
    first = _modernbert_layers("encoder/blocks/stack_0", 0)
    others = _modernbert_layers("encoder/blocks/stack_1", 1)
    return rows + first + others


def _modernbert_layers(blocks: str, first: int) -> list[Row]:
    """A stack of layers, `first` the number of the first one, by our path."""
    layer = "model.layers.*"
    wide = f"{layer}.mlp.Wi"
    return [
        Row(f"{layer}.attn_norm", f"{blocks}/attention_norm", NORM, first),
        Row(f"{layer}.attn.Wqkv", f"{blocks}/attention/proj_in", LINEAR, first),
        Row(f"{layer}.attn.Wo", f"{blocks}/attention/out", LINEAR, first),
        Row(f"{layer}.mlp_norm", f"{blocks}/mlp_norm", NORM, first),
        Row(wide, f"{blocks}/mlp/gate", half_of_linear(HALVES[0]), first),
        Row(wide, f"{blocks}/mlp/proj_in", half_of_linear(HALVES[1]), first),
        Row(f"{layer}.mlp.Wo", f"{blocks}/mlp/proj_out", LINEAR, first),
    ]


def _described_modernbert(described: Described) -> Model:
    full = _rotary(described, "full_attention", "global_rope_theta", 160_000.0)
    local = _rotary(described, "sliding_attention", "local_rope_theta", 10_000.0)
    half = _whole(described, "local_attention", _WINDOW) // 2
    model: Model = {
        "norm_eps": _number(described, "norm_eps", 1e-5),
        "heads": _whole(described, "num_attention_heads"),
        "length": _whole(described, "max_position_embeddings", 8192),
        "window": 2 * half,
        "global_every": _global_every(described),
        "rotary_theta": full,
        "local_rotary_theta": local,
    }
    activation = described.get("hidden_activation", "gelu")
    if described.get("classifier_activation", "gelu") != activation:
        raise ValueError("classifier_activation is not hidden_activation")
    return model | _activation(activation)


def _global_every(described: Described) -> int:
    """How many layers there are for each that sees all tokens, the first one among these."""
    types = described.get("layer_types")
    if types is None:
        return _whole(described, "global_attn_every_n_layers", 3)
    for every in range(1, len(types) + 1):
        period = ["full_attention"] + ["sliding_attention"] * (every - 1)
        periods = -(-len(types) // every)  # rounded up
        regular = period * periods
        if types == regular[: len(types)]:
            return every
    raise ValueError(f"layer_types is {types}, which is not regular")


def _rotary(described: Described, kind: str, former_key: str, default: float) -> float:
    """The base of the wavelengths of layers of a kind ("" if all are alike); raises ValueError for
    positions that are scaled."""
    parameters = described.get("rope_parameters") or {}
    if kind:
        parameters = parameters.get(kind) or {}
    scaled = described.get("rope_scaling") or {}
    for name, value in {**parameters, **scaled}.items():
        is_default = name in ("rope_type", "type") and value == "default"
        if name != "rope_theta" and not is_default:
            raise ValueError(f"its rotary positions have {name} {value!r}")
    former = _number(described, former_key, default)
    return _number(parameters, "rope_theta", former)


# Llama

_LLAMA_HEAD = Head("lm_head", "lm_head.bias", needs_bias=False)


def _rows_of_llama(config: ConfigDict) -> list[Row]:
    model = config.model
    d_head = (model.d_qkv or model.d_model) // model.heads
    kv_heads = model.kv_heads or model.heads
    # The columns of queries, then of keys, then of values.
    keys = model.heads * d_head
    values = keys + kv_heads * d_head
    end = values + kv_heads * d_head
    layer = "model.layers.*"
    qkv = "encoder/blocks/attention/proj_in"
    return [
        Row("model.embed_tokens.weight", "embedding", SINGLE),
        Row(f"{layer}.input_layernorm", "encoder/blocks/attention_norm", NORM),
        Row(f"{layer}.self_attn.q_proj", qkv, columns(0, keys)),
        Row(f"{layer}.self_attn.k_proj", qkv, columns(keys, values)),
        Row(f"{layer}.self_attn.v_proj", qkv, columns(values, end)),
        Row(f"{layer}.self_attn.o_proj", "encoder/blocks/attention/out", LINEAR),
        Row(f"{layer}.post_attention_layernorm", "encoder/blocks/mlp_norm", NORM),
        Row(f"{layer}.mlp.gate_proj", "encoder/blocks/mlp/gate", LINEAR),
        Row(f"{layer}.mlp.up_proj", "encoder/blocks/mlp/proj_in", LINEAR),
        Row(f"{layer}.mlp.down_proj", "encoder/blocks/mlp/proj_out", LINEAR),
        Row("model.norm", "encoder/norm", NORM),
        Row(f"{_LLAMA_HEAD.decoder}.weight", "output_embedding", SINGLE),
        Row(_LLAMA_HEAD.bias, "bias", SINGLE),
    ]


def _described_llama(described: Described) -> Model:
    heads = _whole(described, "num_attention_heads")
    kv_heads = described.get("num_key_value_heads") or heads
    d_head = described.get("head_dim") or 0
    model: Model = {
        "norm_eps": _number(described, "rms_norm_eps", 1e-6),
        "heads": heads,
        "kv_heads": 0 if kv_heads == heads else kv_heads,
        "length": _whole(described, "max_position_embeddings", 2048),
        "rotary_theta": _rotary(described, "", "rope_theta", 10_000.0),
    }
    if d_head and d_head * heads != described.get("hidden_size"):
        model["d_qkv"] = d_head * heads
    return model


_NO_BIASES = {"biases": False, "attention_bias": False, "positions": "rotary"}
# The value of `model_type` in config.json -> the family.
FAMILIES = {
    "bert": Family(
        rows=_rows_of_bert,
        block="transformer",
        model={**_BERT_MODEL, "activation": "gelu"},
        tables=_bert_tables("bert"),
        layer="bert.encoder.layer.",
        head=_BERT_HEAD,
        described=_described_bert_with_heads,
        allowed=_BERT_ALLOWED,
        pooler="bert.pooler.dense.weight",
    ),
    "fnet": Family(
        rows=_rows_of_fnet,
        block="fnet",
        model={**_BERT_MODEL, "activation": "gelu_tanh", "embedding_projection": True},
        tables=_bert_tables("fnet"),
        layer="fnet.encoder.layer.",
        head=_BERT_HEAD,
        described=_described_bert,
        allowed=_BERT_ALLOWED,
        pooler="fnet.pooler.dense.weight",
    ),
    "roberta": Family(
        rows=_rows_of_roberta,
        block="transformer",
        model={**_BERT_MODEL, "activation": "gelu"},
        tables=_bert_tables("roberta"),
        layer="roberta.encoder.layer.",
        head=_ROBERTA_HEAD,
        described=_described_bert_with_heads,
        allowed=_BERT_ALLOWED,
        pooler="roberta.pooler.dense.weight",
        missing_rows=_rows_before_position_0,
        tokenizer="tokenizer.json",
    ),
    "distilbert": Family(
        rows=_rows_of_distilbert,
        block="transformer",
        model={**_BERT_MODEL, "activation": "gelu", "token_types": 0},
        tables=Tables(
            words="distilbert.embeddings.word_embeddings.weight",
            positions="distilbert.embeddings.position_embeddings.weight",
            inner="distilbert.transformer.layer.0.ffn.lin1.bias",
        ),
        layer="distilbert.transformer.layer.",
        head=_DISTILBERT_HEAD,
        described=_described_distilbert,
        allowed={"activation": tuple(ACTIVATIONS)},
    ),
    "modernbert": Family(
        rows=_rows_of_modernbert,
        block="transformer",
        model={
            **FRAME,
            **_NO_BIASES,
            "norm": "pre",
            "first_norm": False,
            "mlp": "geglu",
            "token_types": 0,
        },
        tables=Tables(
            words="model.embeddings.tok_embeddings.weight",
            inner=f"model.layers.0.mlp.Wi.weight{HALVES[0]}",
        ),
        layer="model.layers.",
        head=_MODERNBERT_HEAD,
        described=_described_modernbert,
        allowed={
            "hidden_activation": tuple(ACTIVATIONS),
            "norm_bias": (False,),
            "mlp_bias": (False,),
            "attention_bias": (False,),
            "classifier_bias": (False,),
        },
        fused=("mlp.Wi.weight",),
        tokenizer="tokenizer.json",
    ),
    "llama": Family(
        rows=_rows_of_llama,
        block="transformer",
        model={
            **_NO_BIASES,
            "norm_type": "rms",
            "mlp": "swiglu",
            "causal": True,
            "token_types": 0,
        },
        tables=Tables(
            words="model.embed_tokens.weight", inner="model.layers.0.mlp.gate_proj.weight"
        ),
        layer="model.layers.",
        head=_LLAMA_HEAD,
        described=_described_llama,
        allowed={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
        task="causal_lm",
        tied=False,
        tokenizer="tokenizer.json",
    ),
}
