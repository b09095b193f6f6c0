"""Published models: their parameters and operations against the papers' tables and counts by hand."""

import dataclasses
from typing import NamedTuple

import pytest
from flax import nnx

from gmlp_flax.models.blocks import name_of
from gmlp_flax.paper.published import (
    FINETUNED_SCORES,
    GROWING,
    PREDICTED,
    PUBLISHED,
    QUOTED,
    VOCAB_SIZE,
    build,
    forward_flops,
    param_count,
)
from gmlp_flax.paper.tables import SCORE_COLUMNS, printed_score

IMAGE = [name for name, model in PUBLISHED.items() if model.pool]
GMLP = [name for name in IMAGE if PUBLISHED[name].source == "Table 1"]


class Sums(NamedTuple):
    """A source's number of models, and the sums of the numbers that it prints."""

    models: int
    params_m: float = 0  # millions
    perplexity: float = 0
    madds_g: float = 0  # billions of multiply-adds
    top1: float = 0


# Source -> sums, which are taken from the papers' tables, not from our rows.
SUMS = {
    "Table 1": Sums(6, params_m=197.6, top1=467.0),
    "Table 2": Sums(10, params_m=862, madds_g=344.9, top1=772.1),
    "Table 3": Sums(8, params_m=806, perplexity=38.60),
    "Table 4": Sums(8, params_m=1442, perplexity=33.29),
    "Table 5": Sums(7, params_m=2307, perplexity=25.15),
    "Table 10": Sums(4, params_m=384, perplexity=20.20),
    "2010.11929": Sums(2),
    "2105.01601": Sums(4, params_m=303),
    "2105.02723": Sums(3, params_m=275.7),
    "2105.03404": Sums(1, params_m=129, madds_g=100),
    "2105.03824": Sums(3, params_m=321),
    "ablation": Sums(4),
    "main": Sums(2),
    "sibling": Sums(21),
}
# Image models of other papers -> parameters in millions, as counted from their own code, and
# whether that prints them without the head of 1,000 classes.
PEERS = {
    "vit_b16": 86.57,
    "vit_l16": 304.33,
    "vit_b16_384": 86.86,
    "vit_l16_384": 304.72,
    "deit_ti": 5.72,
    "deit_s": 22.05,
    "deit_b": 86.57,
    "mixer_s32": 19.1,
    "mixer_s16": 18.5,
    "mixer_b32": 60.3,
    "mixer_b16": 59.9,
    "mixer_l32": 206.9,
    "mixer_l16": 208.2,
    "resmlp_s12": 15.35,
    "resmlp_s24": 30.02,
    "resmlp_s36": 44.69,
    "resmlp_b24": 129.14,
    "ff_tiny": 7.68,
    "ff_base": 61.94,
    "ff_large": 206.2,
}
PEER = pytest.mark.parametrize("name", PEERS)
# Models whose printed figures differ from the counts. Their notes give the reasons.
HEADLESS = {name for name in PEERS if name.startswith("mixer")} | {"vit_b16_384", "deit_b"}
ODD_PARAMS = {"vit_l16_384", "deit_ti"}
NO_CLS = {"vit_b16_384", "vit_l16_384", "deit_b"}
ODD_MADDS = {"mixer_b16": 0.008, "mixer_l16": 0.006}
TEXT = [name for name, model in PUBLISHED.items() if not model.pool]


def with_fields(name, **fields):
    """Parameters in millions of a published model with some fields of its spec changed."""
    model = PUBLISHED[name]
    spec = dataclasses.replace(model.spec, **fields)
    changed = dataclasses.replace(model, spec=spec)
    return param_count(changed) / 1e6


def digits(printed):
    """How many digits a number has after the point."""
    _, _, decimals = f"{printed:g}".partition(".")
    return len(decimals)


def token_mixing_madds(spec):
    """Multiply-adds of one layer's mixing of tokens."""
    n = spec.length
    d = spec.d_model
    block = name_of(spec.block)
    if block == "transformer":
        projections = 4 * n * d * d
        attention = 2 * n * n * d
        return projections + attention
    if block == "resmlp":
        return n * n * d
    assert block in ("mixer", "feed_forward")
    return 2 * n * spec.d_spatial * d


def madds_by_hand(name):
    """Multiply-adds of one image: stem, blocks, head."""
    model = PUBLISHED[name]
    spec = model.spec
    patch, _ = model.around["patch_size"]
    n = spec.length
    d = spec.d_model
    patches = n - 1 if model.pool == "cls" else n
    stem = patches * 3 * patch * patch * d
    mlp = 8 * n * d * d
    block = token_mixing_madds(spec) + mlp
    head = 1000 * d
    blocks = spec.layers * block
    return stem + blocks + head


def norm_params(d):
    """Scale and bias."""
    return 2 * d


def linear_params(inputs, outputs):
    """Kernel and bias."""
    return inputs * outputs + outputs


def mlp_params(d):
    """The layers of an MLP with four times as many hidden numbers."""
    return linear_params(d, 4 * d) + linear_params(4 * d, d)


def embedding_params(d):
    """The table, which is tied to the output, and the bias of the output."""
    return VOCAB_SIZE * d + VOCAB_SIZE


def gmlp_params(layers, n, d, f, a=0):
    """Parameters of a gMLP by hand: table and output bias, blocks, final norm. `a` is the size of
    tiny attention."""
    half = f // 2
    taps = 2 * n - 1
    spatial = taps + n
    block = norm_params(d)
    block += linear_params(d, f)
    block += norm_params(half) + spatial
    block += linear_params(half, d)
    if a:
        tiny_attention = linear_params(d, 3 * a) + linear_params(a, half)
        block += tiny_attention
    blocks = layers * block
    return embedding_params(d) + blocks + norm_params(d)


def transformer_params(layers, n, d, heads=0, absolute=False):
    """Parameters of a Transformer by hand. `heads` have relative biases; if `absolute`, a table has
    a vector for each position."""
    block = 2 * norm_params(d)
    attention = 4 * linear_params(d, d)
    block += attention + mlp_params(d)
    block += heads * (2 * n - 1)
    positions = n * d if absolute else 0
    blocks = layers * block
    return embedding_params(d) + blocks + norm_params(d) + positions


@pytest.mark.smoke
@pytest.mark.parametrize(
    "name, expected", [("gmlp_ti", 5_867_328), ("gmlp_s", 19_422_656), ("gmlp_b", 73_075_392)]
)
def test_parameters_equal_timms(name, expected):
    assert param_count(PUBLISHED[name]) == expected


def test_every_source_is_summed():
    assert {model.source for model in PUBLISHED.values()} == set(SUMS)


@pytest.mark.parametrize("source", SUMS)
def test_printed_numbers_have_the_sums_of_the_papers_tables(source):
    expected = SUMS[source]
    models = []
    for model in PUBLISHED.values():
        if model.source == source:
            models.append(model)
    assert len(models) == expected.models
    for column in ("params_m", "perplexity", "madds_g", "top1"):
        values = [getattr(model, column) for model in models]
        printed = [value for value in values if value is not None]
        expected_sum = getattr(expected, column)
        assert sum(printed) == pytest.approx(expected_sum), column


@PEER
def test_parameters_of_other_papers_models_equal_their_codes(name):
    count = param_count(PUBLISHED[name]) / 1e6
    assert round(count, digits(PEERS[name])) == PEERS[name]


@PEER
def test_operations_of_other_papers_models(name):
    """They equal a count by hand, and the printed digits unless the note explains a difference."""
    printed = PUBLISHED[name].madds_g
    model = PUBLISHED[name]
    madds = forward_flops(model) / 2
    assert madds == madds_by_hand(name)
    assert model.flops_g is None
    assert ("multiply-adds fit its patches" in model.note) == (name in NO_CLS)
    assert ("multiply-adds exceed" in model.note) == (name in ODD_MADDS)
    if name in NO_CLS:
        spatial_length = model.spec.length - 1
        spec = dataclasses.replace(model.spec, length=spatial_length)
        around = {**model.around, "pool": "mean"}
        without_cls = dataclasses.replace(model, spec=spec, around=around)
        madds = forward_flops(without_cls) / 2
    if name in ODD_MADDS:
        excess = printed / (madds / 1e9) - 1
        assert round(excess, 3) == ODD_MADDS[name]
    elif printed is not None:
        madds_g = madds / 1e9
        assert round(madds_g, digits(printed)) == printed


COUNTED_TEXT = [name for name in TEXT if PUBLISHED[name].params_m and name != "fnet_large"]


@pytest.mark.parametrize("name", COUNTED_TEXT)
def test_parameters_of_text_models_equal_the_papers(name):
    model = PUBLISHED[name]
    millions = param_count(model) / 1e6
    assert round(millions) == model.params_m


@PEER
def test_parameters_of_other_papers_models_equal_the_printed_ones(name):
    """Unless the note explains a difference."""
    model = PUBLISHED[name]
    expected = name in HEADLESS | {"vit_l16_384"}
    assert ("without the head" in model.note) == expected
    if model.params_m is None or name in ODD_PARAMS:
        assert model.note
        return
    count = param_count(model) / 1e6
    if name in HEADLESS:
        head = linear_params(model.spec.d_model, 1000)
        count -= head / 1e6
    printed_digits = digits(model.params_m)
    assert round(count, printed_digits) == model.params_m


class Params(NamedTuple):
    """Parameters of our model, and of the paper's heads that it does not have."""

    model: int
    other_heads: int


def fnet_params(layers, d, attention_layers=0):
    """Parameters of FNet by hand.

    FNet has tables of words, positions and types with a norm and a projection, layers, and the
    transform and the bias of the logits. The other heads are a pooler and two classes of sentence
    pairs."""
    dense = linear_params(d, d)
    tables = (VOCAB_SIZE + 512 + 4) * d
    stem = tables + norm_params(d) + dense
    norms = 2 * norm_params(d)
    block = norms + mlp_params(d)
    attention = attention_layers * 4 * dense
    logits = dense + norm_params(d) + VOCAB_SIZE
    blocks = layers * block
    model = stem + blocks + attention + logits
    classifier = linear_params(d, 2)
    return Params(model, other_heads=dense + classifier)


def test_fnet_hybrid_by_hand():
    expected = fnet_params(12, 768, attention_layers=2)
    assert param_count(PUBLISHED["fnet_hybrid"]) == expected.model


@pytest.mark.parametrize(
    ("name", "layers", "d", "printed", "in_notes"),
    [
        ("fnet_base", 12, 768, 83, [82.9, 82.9]),
        ("fnet_large", 24, 1024, 238, [237.0, 236.9]),
    ],
)
def test_fnet_by_hand_with_and_without_its_heads(name, layers, d, printed, in_notes):
    """The printed 238 M are those with the pooler, masked-token and next-sentence heads. The printed
    83 M do not show which heads are counted."""
    model = PUBLISHED[name]
    expected = fnet_params(layers, d)
    assert param_count(model) == expected.model
    with_all_heads = (expected.model + expected.other_heads) / 1e6
    assert round(with_all_heads) == printed
    assert f"has {with_all_heads:.2f}M" in model.note
    dense = linear_params(d, d)
    transform = dense + norm_params(d) + VOCAB_SIZE
    pooler = linear_params(d, d)
    with_pooler_alone = expected.model - transform + pooler
    counts = (expected.model, with_pooler_alone)
    millions = [round(count / 1e6, 1) for count in counts]
    assert millions == in_notes


def frame_params(mixing, d=768, positions=0):
    """Parameters of Table 3's model with another mixer: 12 pre-norm layers with an MLP, and tied
    embeddings. `mixing` are those of the mixer in a layer."""
    norms = 2 * norm_params(d)
    block = norms + mlp_params(d) + mixing
    stem = embedding_params(d) + positions * d
    blocks = 12 * block
    return stem + blocks + norm_params(d)


D = 768
N = 128
DENSE = linear_params(D, D)
LOGITS = 12 * N * N  # one matrix for each head
# Three layers of 64 on 5 features, one of 768, and 64 frequencies.
FILTER = linear_params(5, 64) + 2 * linear_params(64, 64) + 64 * D + 64
HYDRA = (
    6 * D**2  # gate, values and out
    + D * (256 + 48)  # B, C and steps
    + 8 * (1536 + 256)  # filters
    + 24 * (3 + 1536)  # heads and their diagonal
    + 1536  # the norm
)
# Mixer -> its parameters in a layer, and the millions of the model. Heads have size 64, and
# factorized matrices n = 8 x 16.
MIXERS = {
    "fnet": (0, 81.41),
    "random": (2 * DENSE + LOGITS, 97.85),
    "fixed_random": (2 * DENSE + LOGITS, 97.85),
    "factorized": (2 * DENSE + 12 * 2 * N * 8, 95.78),
    "dense": (3 * DENSE + 12 * (64 * N + N), 103.77),
    "factorized_dense": (3 * DENSE + 12 * (64 * (8 + 16) + 8 + 16), 102.80),
    "random_vanilla": (4 * DENSE + LOGITS + 2, 112.02),
    "external": (2 * DENSE + 2 * 64 * D, 96.77),
    "lightweight": (3 * DENSE + 12 * 7, 102.58),
    "dynamic": (3 * DENSE + (D * 12 * 7 + 12 * 7), 103.35),
    "long_conv": (4 * DENSE + 3 * D * 4 + 2 * FILTER + D, 111.17),
    "bert_t5": (4 * DENSE + 12 * 32, 109.67),
    "hydra": (HYDRA, 127.22),
    "resmlp": (N * N + N + 2 * D, 81.53),  # affine layers replace norms
    "feed_forward": (2 * N * 384 + 384 + N - 2 * (D - N), 82.49),  # one norm is over tokens
    "hybrid": (8 * DENSE // 12, 86.14),  # attention in two layers of 12
}


def test_the_parameters_of_bigs_by_hand():
    """A gate of 3 d, four projections of d, and for each direction 64 modes of 4 numbers, D and a
    step."""
    projections = 2 * linear_params(768, 2304)
    gate = projections + linear_params(2304, 768)
    state_space = 64 * 4 + 2
    direction = 2 * DENSE + state_space
    directions = 2 * direction
    layer = norm_params(768) + gate + directions
    blocks = 12 * layer
    expected = embedding_params(768) + blocks + norm_params(768)
    assert param_count(PUBLISHED["bigs"]) == expected
    assert round(expected / 1e6, 2) == 116.75


def test_the_parameters_of_delta_by_hand():
    """6 d^2 in projections as published: 6 heads of 96 keys and 192 values."""
    keys = 6 * 96
    values = 6 * 192
    projected_channels = 2 * keys + 3 * values
    projections = 768 * projected_channels
    assert projections == 6 * 768**2
    convolution = 4 * (2 * keys + values)
    gates = 768 * 12
    direction = convolution + gates + 2 * 6
    mixing = projections + 2 * direction + 192
    expected = frame_params(mixing)
    assert param_count(PUBLISHED["delta"]) == expected
    assert round(expected / 1e6, 2) == 124.23


def test_the_parameters_of_modern_by_hand():
    """A layer has as many products as the Transformer's 12 d^2: 4 in attention, and 8 in three
    matrices of the MLP. It has no biases, and its norms have only scales."""
    attention = 4 * 768**2
    mlp = 3 * 768 * 2048
    assert mlp == 8 * 768**2
    layer = attention + mlp + 2 * 768
    blocks = 12 * layer
    expected = embedding_params(768) + blocks + 768
    assert param_count(PUBLISHED["modern"]) == expected
    assert round(expected / 1e6, 2) == 109.56


@pytest.mark.parametrize("name", MIXERS)
def test_parameters_of_mixers_of_other_papers_by_hand(name):
    mixing, millions = MIXERS[name]
    positions = N if name in ("fnet", "hybrid", "external") else 0
    expected = frame_params(mixing, positions=positions)
    if name == "fnet":
        expected -= norm_params(D)  # post-norm: no final one
    assert round(expected / 1e6, 2) == millions
    assert param_count(PUBLISHED[name]) == expected


def test_the_parameters_of_growing_kernels_by_hand():
    model = PUBLISHED["growing"]
    assert model.spec.kernel_widths == GROWING
    assert sum(GROWING) == 8 + 14 + 60 + 124
    kernels = 12 * sum(GROWING)
    expected = frame_params(3 * DENSE) + kernels
    assert param_count(model) == expected


def test_fixed_random_logits_are_not_trained():
    """Its note has their number."""
    model = PUBLISHED["fixed_random"]
    fixed = 12 * LOGITS
    assert f"{fixed / 1e6:.2f}M" == "2.36M"
    assert "2.36M" in model.note
    assert round((param_count(model) - fixed) / 1e6, 2) == 95.49


def test_a_gmlp_with_depthwise_convolutions_by_hand():
    """A kernel of 31 and a bias for each of 1,536 channels replace 2n - 1 taps and n biases."""
    toeplitz = 2 * N - 1 + N
    depthwise = (31 + 1) * 1536
    toeplitz_matrices = 36 * toeplitz
    without_mixing = param_count(PUBLISHED["sgu"]) - toeplitz_matrices
    count = param_count(PUBLISHED["depthwise"])
    assert count == without_mixing + 36 * depthwise


@pytest.mark.parametrize(
    ("name", "mixing"),
    [
        ("fnet", 2 * D * D + 2 * N * D),
        ("random", 2 * D * D + N * D),
        ("dense", 3 * D * D + 2 * N * D),
        ("external", 2 * D * D + 2 * 64 * D),
        ("lightweight", 3 * D * D),
        ("growing", 3 * D * D),
        ("dynamic", 3 * D * D + D * 84),
        # the filters, which all examples share, are computed for 128 distances
        ("long_conv", 4 * D * D + 2 * (5 * 64 + 2 * 64 * 64 + 64 * D)),
    ],
)
def test_operations_of_mixers_by_hand(name, mixing):
    """`mixing` is per token and layer, without the MLP. Only the products of convolutions count."""
    mlp = 8 * D * D
    layers = 12 * N * (mixing + mlp)
    predictions = round(PREDICTED * N)
    head = predictions * VOCAB_SIZE * D
    products = layers + head
    assert forward_flops(PUBLISHED[name]) == 2 * products


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gmlp_36", gmlp_params(36, 128, 512, 3072)),
        ("amlp_large", gmlp_params(72, 512, 768, 3072, 128)),
        ("amlp_36", gmlp_params(36, 128, 512, 3072, 64)),
        ("amlp_36_128", gmlp_params(36, 128, 512, 3072, 128)),
        ("bert", transformer_params(12, 128, 768, absolute=True)),
        ("bert_rel", transformer_params(12, 128, 768, 12)),
        ("bert_rel_only", transformer_params(12, 128, 768, 12) - 12 * 2 * DENSE),
        ("transformer_48", transformer_params(48, 128, 768, 12)),
        ("thin_96", transformer_params(96, 128, 256, 8)),
        ("bert_large", transformer_params(24, 512, 1024, absolute=True)),
        ("bert_base_rel", transformer_params(12, 512, 768, 12)),
        ("bert_large_rel", transformer_params(24, 512, 1024, 16)),
    ],
)
def test_parameters_by_hand(name, expected):
    assert param_count(PUBLISHED[name]) == expected


def test_notes_give_the_counts_with_d_ffn_of_table_3s_captions():
    """The captions say 3072, with which the models have more parameters than the table prints."""
    for gate in ("linear", "additive", "multiplicative"):
        assert PUBLISHED[gate].spec.d_ffn == 2048
        assert "130.1M" in PUBLISHED[gate].note
        assert round(with_fields(gate, d_ffn=3072), 1) == 130.1
    # 130.0 without the output bias of 32,000.
    millions = with_fields("linear", d_ffn=3072)
    assert round(millions - 0.032, 1) == 130.0
    assert PUBLISHED["mixer"].spec.d_ffn == 2304
    assert "140.4M" in PUBLISHED["mixer"].note
    assert round(with_fields("mixer", d_ffn=3072), 1) == 140.4


def test_operations_of_factorized_logits_by_hand():
    factorized = forward_flops(PUBLISHED["factorized"])
    random = forward_flops(PUBLISHED["random"])
    added = factorized - random
    assert added == 12 * 2 * 12 * N * N * 8


@pytest.mark.parametrize("name", ["gmlp_ti", "gmlp_s", "gmlp_b"])
def test_parameters_of_image_models_with_a_cls_token(name):
    """Within half a digit: 73.350 M are printed as 73.4."""
    model = PUBLISHED[f"{name}_cls"]
    millions = param_count(model) / 1e6
    assert abs(millions - model.params_m) <= 0.05


@pytest.mark.parametrize("name", ["gmlp_ti", "gmlp_s", "gmlp_b"])
def test_operations_of_image_models_are_near_table_1s(name):
    """With a cls token they have the printed digits, except for S (8.84, printed 8.9). Without one
    they are within 1.6 %."""
    model = PUBLISHED[name]
    printed = model.flops_g
    flops = forward_flops(PUBLISHED[f"{name}_cls"])
    with_cls = flops / 1e9
    expected = 8.8 if name == "gmlp_s" else printed
    assert round(with_cls, 1) == expected
    assert abs(with_cls / printed - 1) < 0.01
    without_cls = forward_flops(model) / 1e9
    assert abs(without_cls / printed - 1) < 0.016
    n = 196
    d = model.spec.d_model
    proj_in = d * 6 * d
    spatial = n * 3 * d
    proj_out = 3 * d * d
    block = n * (proj_in + spatial + proj_out)
    stem = n * 768 * d
    head = d * 1000
    products = stem + 30 * block + head
    expected = 2 * products / 1e9
    assert without_cls == expected


TABLE_5 = [name for name, model in PUBLISHED.items() if model.source == "Table 5"]


def test_operations_that_table_5_prints():
    printed = [PUBLISHED[name].flops_g for name in TABLE_5]
    assert sum(printed) == pytest.approx(2620.6)


@pytest.mark.parametrize("name", TABLE_5)
def test_operations_of_text_models_are_near_table_5s(name):
    model = PUBLISHED[name]
    flops = forward_flops(model)
    flops_g = flops / 1e9
    assert flops_g == pytest.approx(model.flops_g, rel=0.015)
    n = 512
    d = model.spec.d_model
    f = model.spec.d_ffn
    a = getattr(model.spec, "d_attn", 0)
    if name.startswith("bert"):
        attention = 4 * d * d + 2 * n * d
        mlp = 2 * d * f
        block = attention + mlp
    else:
        half = f // 2
        channel_products = d * f + half * d
        gmlp = channel_products + n * half
        projections = d * 3 * a + a * half
        tiny_attention = projections + 2 * n * a
        block = gmlp + tiny_attention
    predictions = round(PREDICTED * n)
    head = predictions * VOCAB_SIZE * d
    blocks = model.spec.layers * n * block
    assert flops == 2 * (blocks + head)


@pytest.mark.parametrize("name", GMLP)
def test_pools_and_survival_of_gmlps_of_images(name):
    """Parameters do not show them."""
    model = PUBLISHED[name]
    has_cls = model.pool == "cls"
    assert has_cls == name.endswith("cls")
    assert model.around["pre_logits"] == has_cls
    survival_by_width = {128: 1.0, 256: 0.95, 512: 0.8}
    expected = survival_by_width[model.spec.d_model]
    assert model.spec.survival == expected


ABSOLUTE = {"bert", "bert_base", "bert_large"}


@pytest.mark.parametrize("name", TEXT)
def test_lengths_and_positions_of_text_models(name):
    """Parameters do not show them."""
    model = PUBLISHED[name]
    spec = model.spec
    is_long = model.source in ("Table 5", "main", "2105.03824")
    assert spec.length == (512 if is_long else 128)
    if name_of(spec.block) == "gmlp":
        assert spec.spatial == ("depthwise" if name == "depthwise" else "toeplitz")
    other_absolute = name.startswith(("fnet", "hybrid", "external"))
    is_absolute = name in ABSOLUTE or other_absolute
    assert (spec.positions == "absolute") == is_absolute


def test_models_may_have_another_number_of_classes():
    published = PUBLISHED["gmlp_ti"]

    def make():
        return build(published, nnx.Rngs(0), classes=7)

    model = nnx.eval_shape(make)
    state = nnx.state(model, nnx.Param)
    head = nnx.to_pure_dict(state)["head"]
    assert head["kernel"].shape == (128, 7)


@pytest.mark.parametrize("name", ["bert_base", "bert_large"])
def test_transformers_with_relative_positions_differ_from_table_5s_in_nothing_else(name):
    """Their parameters also round to Table 5's 110 and 336 M, so that the paper's choice remains
    open."""
    relative = PUBLISHED[f"{name}_rel"]
    listed = PUBLISHED[name]
    assert relative.spec != listed.spec
    expected = dataclasses.replace(listed.spec, positions="relative")
    assert relative.spec == expected
    assert relative.note
    millions = param_count(relative) / 1e6
    assert round(millions) == listed.params_m


def test_the_paper_has_the_finetuned_scores_of_its_tables():
    """Table 4 has two columns, Table 6 five; no table has RTE."""
    columns_of_source = {"Table 4": 2, "Table 5": 5}
    models = {}
    for name, model in PUBLISHED.items():
        if model.source in columns_of_source:
            models[name] = model
    quoted = {row.name for row in QUOTED["Table 6"]}
    expected = models.keys() | quoted
    assert set(FINETUNED_SCORES) == expected
    for name, model in models.items():
        scores = FINETUNED_SCORES[name]
        columns = columns_of_source[model.source]
        assert len(scores) == columns
    sst2, mnli, _, squad, *_ = SCORE_COLUMNS
    assert printed_score("amlp_base", squad) == 90.7
    assert printed_score("gmlp_36", mnli) == 80.9
    assert printed_score("gmlp_36", squad) is None
    assert printed_score("sgu", sst2) is None
    tasks = {column.task for column in SCORE_COLUMNS}
    assert tasks == {"sst2", "mnli", "squad_v1.1", "squad_v2.0", "rte"}


def test_quoted_rows_of_table_2():
    """Against the sums of the paper's columns: parameters, multiply-adds, top-1."""
    rows = QUOTED["Table 2"]
    params_m = [row.params_m for row in rows]
    madds_g = [row.madds_g for row in rows]
    top1 = [row.top1 for row in rows]
    assert sum(params_m) == pytest.approx(313)
    assert sum(madds_g) == pytest.approx(83.59)
    assert sum(top1) == pytest.approx(563.9)


def test_a_quoted_row_is_the_same_model_with_better_training():
    """It has a higher accuracy at the same size."""
    [quoted] = [row for row in QUOTED["Table 2"] if row.name == "Mixer-B/16 (gMLP's training)"]
    ours = PUBLISHED["mixer_b16"]
    assert quoted.params_m == ours.params_m
    assert quoted.madds_g == ours.madds_g
    assert quoted.top1 > ours.top1


def test_table_2_has_all_its_rows():
    """Ten models of PUBLISHED, those that are quoted, and Table 1's three gMLPs: 20."""
    sources = [model.source for model in PUBLISHED.values()]
    assert len(QUOTED["Table 2"]) + sources.count("Table 2") + 3 == 20


def test_quoted_rows_of_table_6():
    base, large = QUOTED["Table 6"]
    base_scores = printed_scores(base.name)
    assert sum(base_scores) == pytest.approx(341.9)
    large_scores = printed_scores(large.name)
    assert sum(large_scores) == pytest.approx(353.0)
    assert base.params_m == PUBLISHED["bert_base"].params_m
    assert large.params_m == PUBLISHED["bert_large"].params_m
    assert base.top1 is base.madds_g is None
    assert "Devlin" in base.name


def printed_scores(name):
    """The four scores that the paper prints for a row."""
    scores = [printed_score(name, column) for column in SCORE_COLUMNS]
    printed = [score for score in scores if score is not None]
    assert len(printed) == 4
    return printed
