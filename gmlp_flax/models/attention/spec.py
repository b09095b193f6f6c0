"""The options of blocks with heads, of blocks that weigh tokens by a softmax, and of attention."""

import dataclasses

from gmlp_flax.models.layers import ChannelMLPSpec
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import ABOVE_0, FINETUNED_RUNS, RATE, SIZE, SIZE_OR_0, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsSpec(ChannelMLPSpec):
    """Options of blocks that split the channels into heads."""

    heads: int = option(4, "heads, each of d_model / heads channels", SIZE, architecture=True)

    def check(self) -> None:
        """Raises ValueError if the heads do not divide the channels."""
        super().check()
        if self.d_model % self.heads:
            raise ValueError(
                f"model.d_model is {self.d_model}: model.heads, {self.heads}, must divide it"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightDropoutSpec(BlockSpec):
    """Options of blocks that weigh tokens by a softmax."""

    attention_dropout: float = option(
        0.0,
        "rate of dropout on the weights of attention, or on kernels",
        RATE,
        compared=FINETUNED_RUNS,
    )

    @property
    def draws(self) -> bool:
        """See `BlockSpec`."""
        return super().draws or self.attention_dropout > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContentAttentionSpec(WeightDropoutSpec):
    """Options of blocks whose tokens are weighed by q k^T."""

    attention: str = option(
        "auto",
        "auto: a kernel of TPUs, or cuDNN's on GPUs, where there is one; xla: none",
        ("auto", "xla"),
        may_change=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec(HeadsSpec, ContentAttentionSpec):
    """Options of multi-head attention."""

    positions: str = option(
        "none",
        "none; a learned table (absolute); a bias on the logits per offset (relative); "
        "only that bias; queries and keys turned by their positions (rotary)",
        ("none", "absolute", "relative", "relative_only", "rotary"),
        architecture=True,
    )
    rotary_theta: float = option(
        10_000.0, "of rotary positions: the base of their wavelengths", ABOVE_0, architecture=True
    )
    qk_norm: bool = option(
        False, "each head's queries and keys divided by their root mean square", architecture=True
    )
    relative_buckets: int = option(
        0, "T5's logarithmic buckets of offsets (T5: 32); 0: a bias per offset", architecture=True
    )
    attention_bias: bool = option(True, "biases in the projections of attention", architecture=True)
    d_qkv: int = option(
        0,
        "width of queries, keys and values, over all heads; 0: d_model",
        SIZE_OR_0,
        architecture=True,
    )
    kv_heads: int = option(
        0,
        "heads of keys and values, each of which serves as many heads of queries (grouped-query "
        "attention); 0: heads",
        SIZE_OR_0,
        architecture=True,
    )
    window: int = option(
        0,
        "attention sees half as many tokens on each side (ModernBERT: 128); 0: all tokens",
        SIZE_OR_0,
        architecture=True,
    )

    def check(self) -> None:
        """Raises ValueError if the heads do not divide the channels, or for an impossible number of
        buckets or an odd window."""
        super().check()
        if self.window % 2:
            raise ValueError(
                f"model.window is {self.window}: expected 0, or an even number, half of which lies "
                "on each side"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(
                f"model.kv_heads is {self.kv_heads}: expected a divisor of model.heads, "
                f"{self.heads}"
            )
        if self.kv_heads and self.positions == "relative_only":
            raise ValueError(
                "model.positions is 'relative_only', without queries and keys: set model.kv_heads "
                "to 0"
            )
        if self.d_qkv % self.heads:
            raise ValueError(
                f"model.d_qkv is {self.d_qkv}: model.heads, {self.heads}, must divide it"
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(
                f"model.positions is 'rotary', and a head has {self.d_head} channels: "
                "expected an even number"
            )
        if self.positions == "relative_only" and self.qk_norm:
            raise ValueError(
                "model.positions is 'relative_only', without queries and keys: set model.qk_norm "
                "to False"
            )
        count = self.relative_buckets
        if count and (count % 2 or not 4 <= count <= 256):
            raise ValueError(
                f"model.relative_buckets is {count}: "
                "expected 0, or an even number from 4 to 256 (T5: 32)"
            )

    def supports_length(self, tokens: int) -> bool:
        """Any number of tokens, or at most n if each position or offset has parameters of its
        own."""
        in_buckets = self.positions.startswith("relative") and self.relative_buckets > 0
        has_no_parameters = self.positions in ("none", "rotary")
        return tokens <= self.length or has_no_parameters or in_buckets

    @property
    def d_head(self) -> int:
        """Channels of a query, a key and a value in each head."""
        width = self.d_qkv or self.d_model
        return width // self.heads

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.heads
