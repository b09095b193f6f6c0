"""Our models and timm's, every tensor random, give the same logits and the same gradients of the
pixels."""

import functools
import re
import sys

import numpy as np
import pytest
from flax import traverse_util

from gmlp_flax.benchmarks import parity
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.errors import RunError, install
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.weights import timm as timm_models
from gmlp_flax.weights.state_dicts import torch_views
from gmlp_flax.weights.transformers_models import FAMILIES
from tests.models.reference import in_float64
from tests.selection import marked_unless


@pytest.fixture(scope="module")
def timm():
    pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    try:
        return import_beside_torch("timm")
    except RunError as error:
        pytest.skip(str(error))


QUICK = (
    *parity.COMPARED,
    "deit3_small_patch16_224",
    "vit_so400m_patch16_siglip_gap_256",
    "vit_betwixt_patch16_gap_256",
)


@pytest.mark.parametrize(
    "name",
    marked_unless(QUICK, timm_models.MODELS, pytest.mark.nightly),
)
def test_parameters_have_timms_names_and_shapes(name, timm):
    """Each tensor of each model, what shapes do not say, and how pixels are seen, are timm's;
    nothing is allocated."""
    import torch

    config = timm_models.config_for(name)
    ours = ImageClassification(config).shapes()
    flat = zeros_like(traverse_util.flatten_dict(ours, sep="/"))
    rows = timm_models.MODELS[name].rows
    views = torch_views(flat, rows)
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=1000)
    state = zeros_like(model.state_dict())
    folded = timm_models.folded(state, ours)
    shapes = {}
    for key, view in views.items():
        shapes[key] = view.shape
    expected = {}
    for key, value in folded.items():
        expected[key] = value.shape
    assert shapes == expected
    seen = model.pretrained_cfg
    assert seen["mean"] == config.data.mean
    assert seen["std"] == config.data.std
    assert seen["crop_pct"] == config.data.eval_crop
    assert config.data.transform == "timm"
    epsilon = model.norm.__dict__.get("eps", 1e-6)
    assert epsilon == config.model.norm_eps
    if config.model.block == "transformer":
        block = model.blocks[0]
        our_pools = {"token": "cls", "avg": "mean"}
        assert block.attn.num_heads == config.model.heads
        pool = our_pools[model.global_pool]
        assert pool == config.model.pool
        activation = type(block.mlp.act).__name__
        expected = config.model.activation.replace("_", "")
        assert activation.lower() == expected


def zeros_like(arrays):
    """Zeros of the shapes of some arrays, which take no memory."""
    zero = np.float32(0)
    zeros = {}
    for name, array in arrays.items():
        zeros[name] = np.broadcast_to(zero, tuple(array.shape))
    return zeros


FAMILY_MEMBERS = (
    "gmlp_ti16_224",
    "mixer_s16_224",
    "resmlp_12_224",
    "deit_tiny_patch16_224",
    "deit3_small_patch16_224",
    "vit_medium_patch16_gap_240",
    "vit_base_patch32_siglip_gap_256",
)


@pytest.mark.parametrize(
    "name",
    marked_unless(
        ("gmlp_ti16_224", "deit3_small_patch16_224"), FAMILY_MEMBERS, pytest.mark.nightly
    ),
)
@in_float64
@pytest.mark.slow
def test_float64(name, timm, monkeypatch):
    """One a family, oblong and small, ViTs of two layers; tight enough to see a wrong epsilon,
    which changes logits by about 1e-5."""
    if "it" in name:  # timm's other models have no argument for it
        create_shallow = functools.partial(timm.create_model, depth=2)
        monkeypatch.setattr(timm, "create_model", create_shallow)
        row = timm_models.MODELS[name]
        changed_model = row.model | {"layers": 2}
        shallow = row._replace(model=changed_model)
        monkeypatch.setitem(timm_models.MODELS, name, shallow)
    errors = parity.compare(name, "float64", image_size=(32, 64))
    assert errors.logits < 1e-12, errors
    assert errors.gradient < 1e-12, errors


SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
HEADS = {**SMALL, "num_attention_heads": 2}
# Special tokens must be in the vocabulary.
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "bert": HEADS,
    "fnet": SMALL,
    "roberta": {**HEADS, "max_position_embeddings": 14},
    "distilbert": {
        "vocab_size": 50,
        "dim": 16,
        "n_layers": 3,
        "hidden_dim": 24,
        "n_heads": 2,
        "max_position_embeddings": 12,
    },
    "modernbert": {**HEADS, **SPECIAL, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
    "llama": {**HEADS, **SPECIAL, "num_key_value_heads": 1},
}


@pytest.mark.parametrize("name", parity.TEXT_MODELS)
@in_float64
def test_text(name):
    """Tight enough to see a wrong epsilon or another GELU."""
    pytest.importorskip("transformers", reason="transformers is not installed (extra: parity)")
    sizes = SIZES[name]
    errors = parity.compare_text(name, "float64", **sizes)
    # transformers computes the angles of rotary positions in float32
    limit = 1e-6 if name in ("modernbert", "llama") else 1e-12
    assert max(errors) < limit, errors


def test_every_family_is_compared():
    assert set(parity.TEXT_MODELS) == set(FAMILIES)


@pytest.mark.parametrize(
    ("package", "missing"), [("timm", "torch"), ("transformers", "transformers")]
)
def test_missing_packages_are_reported(monkeypatch, package, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    advice = re.escape(install("parity"))
    with pytest.raises(RunError, match=rf"{package} is not installed .*: {advice}"):
        import_beside_torch(package)
