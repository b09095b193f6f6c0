"""The options with which every block is tested, and the numpy version of each block."""

import functools

from flax import nnx

from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.models.blocks.gmlp import GMLPSpec
from gmlp_flax.options import options_of
from tests.models import reference
from tests.models.reference import small_spec

GATES = options_of(GMLPSpec)["gate"].values
SYNTHESIZERS = (
    "random",
    "fixed_random",
    "factorized_random",
    "dense",
    "factorized_dense",
    "attention",
    "random+attention",
    "dense+factorized_random",
    "factorized_dense+fixed_random+dense",
)

HYDRA = {"block": "hydra", "d_state": 4, "kernel_width": 3}
HYDRAS = {
    "hydra": HYDRA,
    "hydra, 3 groups": HYDRA | {"groups": 3, "kernel_width": 4, "expand": 1},
    "hydra, learned": HYDRA | {"input_dependent": False},
    "hydra, dense": HYDRA | {"matrix": "dense", "input_dependent": False},
}
for kind in ("toeplitz", "low_rank", "attention"):
    HYDRAS[f"hydra, {kind}"] = HYDRA | {"matrix": kind}
for kind in ("toeplitz", "low_rank", "attention"):
    HYDRAS[f"hydra, learned {kind}"] = HYDRA | {"matrix": kind, "input_dependent": False}

# Name of a case -> options. A block without a case is tested with its default options.
CASES = {
    **{f"{gate} gate": {"block": "gmlp", "gate": gate} for gate in GATES},
    "gmlp, dense": {"block": "gmlp", "spatial": "dense"},
    "depthwise": {"block": "gmlp", "spatial": "depthwise", "gate_kernel": 4},
    "depthwise, wide": {"block": "gmlp", "spatial": "depthwise", "gate_kernel": 9, "d_attn": 3},
    "depthwise, additive": {"block": "gmlp", "spatial": "depthwise", "gate_kernel": 3, "gate": "additive"},
    "amlp": {"block": "gmlp", "d_attn": 3},
    "amlp, additive gate": {"block": "gmlp", "d_attn": 3, "gate": "additive"},
    "mixer": {"block": "mixer", "d_spatial": 4},
    "resmlp": {"block": "resmlp"},
    "feed_forward": {"block": "feed_forward", "d_spatial": 20},
    "transformer": {"block": "transformer"},
    "transformer, 6 heads": {"block": "transformer", "heads": 6, "positions": "relative"},
    "transformer, absolute": {"block": "transformer", "positions": "absolute"},
    "relative": {"block": "transformer", "positions": "relative"},
    "relative, 4 buckets": {"block": "transformer", "positions": "relative", "relative_buckets": 4},
    "relative_only": {"block": "transformer", "positions": "relative_only"},
    "relative_only, 6 buckets": {"block": "transformer", "positions": "relative_only", "relative_buckets": 6},
    **{f"fnet, {norm}-norm": {"block": "fnet", "norm": norm} for norm in ("pre", "post")},
    **{f"fnet_hybrid, {norm}-norm": {"block": "fnet_hybrid", "norm": norm} for norm in ("pre", "post")},
    **{parts: {"block": "synthesizer", "synthesizer": parts} for parts in SYNTHESIZERS},
    "synthesizer, 2 heads": {"block": "synthesizer", "synthesizer": "factorized_random", "heads": 2, "rank": 3},
    "external_attention": {"block": "external_attention", "memory": 4},
    "external_attention, memory": {"block": "external_attention", "memory_softmax": "memory", "heads": 2, "memory": 9},
    "lightweight": {"block": "convolution"},
    "dynamic": {"block": "convolution", "convolution": "dynamic", "kernel_widths": (4,)},
    "long_conv": {"block": "long_conv", "filter_width": 4},
    "long_conv, causal": {"block": "long_conv", "filter_width": 4, "filter_features": 7, "causal": True},
    "dilated": {"block": "convolution", "kernel_widths": (3,), "dilations": (2,)},
    "bigs": {"block": "bigs", "d_state": 4},
    "bigs, 3 state spaces": {"block": "bigs", "d_state": 3, "state_spaces": 3},
    "delta": {"block": "delta", "chunk": 2},
    "delta, 2 heads": {"block": "delta", "heads": 2, "expand_k": 1.0, "expand_v": 2.0, "short_kernel": 2},
    **HYDRAS,
}  # fmt: skip
blocks_with_a_case = {options["block"] for options in CASES.values()}
for name in BLOCKS.keys() - blocks_with_a_case:
    CASES[name] = {"block": name}


def spec_of_case(name, **fields):
    """The spec of a case, with some options changed."""
    options = CASES[name] | fields
    return small_spec(**options)


def block_of(name, **fields):
    """The block of a case, with some options changed."""
    spec = spec_of_case(name, **fields)
    return spec.block(spec, nnx.Rngs(0))


def reference_of(name):
    """The block of a case by numpy: a function (parameters, [tokens, channels]) that returns
    [tokens, channels], or None where `reference` has no such function."""
    options = CASES[name]
    block = options["block"]
    heads = options.get("heads", 3)
    arguments = {
        "gmlp": {"kind": options.get("gate", "split")},
        "transformer": {"heads": heads, "length": 5, "count": options.get("relative_buckets", 0)},
        "fnet": {"norm": options.get("norm")},
        "fnet_hybrid": {"norm": options.get("norm")},
        "synthesizer": {"parts": options.get("synthesizer", "random").split("+"), "heads": heads},
        "external_attention": {"over": options.get("memory_softmax", "tokens"), "heads": heads},
        "long_conv": {"length": 5},
        "convolution": {"dilation": options.get("dilations", (1,))[0]},
        "delta": {"heads": heads},
        "hydra": {
            "kind": options.get("matrix", "quasiseparable"),
            "groups": options.get("groups", 1),
        },
    }
    module_name = "fnet" if block == "fnet_hybrid" else block
    function = getattr(reference, f"{module_name}_block", None)
    if function is None:
        return None
    return functools.partial(function, **arguments.get(block, {}))
