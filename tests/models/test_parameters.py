"""What parameters say of themselves, read off whole models."""

import jax.numpy as jnp
import pytest
from flax import nnx

from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.parameters import ParamMetadata, metadata, parameter
from gmlp_flax.models.text import MaskedLM


def test_a_plain_parameter_stays_whole_and_is_decayed():
    class Module(nnx.Module):
        def __init__(self):
            self.plain = nnx.Param(jnp.zeros(3))
            self.ours = parameter(jnp.zeros((2, 3)), sharding=("fsdp", None), decayed=False)

    assert metadata(Module()) == {"plain": ParamMetadata(), "ours": ParamMetadata(("fsdp", None), False)}


@pytest.mark.parametrize("block", BLOCKS)
def test_stacked_blocks_keep_the_facts(block):
    """Vectors are not decayed, matrices over channels are sharded by fsdp, and metadata have no axis for the layers."""
    spec = BLOCKS[block].spec(length=6, layers=3, d_model=8, d_ffn=16)
    module = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    found = metadata(module)
    shapes = {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))}
    assert found.keys() == shapes.keys()
    for path, each in found.items():
        own = shapes[path].get_value().shape[1:] if path.startswith("blocks/") else shapes[path].get_value().shape
        assert len(each.sharding) <= len(own), path
        if path.endswith("kernel"):
            assert "fsdp" in each.sharding and each.decayed, path
        name = path.rpartition("/")[2]
        assert each.decayed or name not in ("kernel", "weight", "taps", "keys", "values"), path
        assert not (each.decayed and name in ("bias", "scale", "logits", "weights")), path


def test_a_language_models_embedding_is_cut_and_decayed():
    spec = BLOCKS["gmlp"].spec(length=6, layers=1, d_model=8, d_ffn=16, positions="absolute")
    found = metadata(nnx.eval_shape(lambda: MaskedLM(spec, 32, nnx.Rngs(0))))
    assert found["embedding"] == ParamMetadata(("tensor", "fsdp")) and found["bias"] == ParamMetadata(
        ("tensor",), False
    )
    assert not found["positions/table"].decayed
