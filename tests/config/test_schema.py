"""Where keys come from: every run, its task, its block."""

import pytest

from gmlp_flax import tasks
from gmlp_flax.config import schema
from gmlp_flax.models import blocks
from gmlp_flax.options import Option


@pytest.mark.parametrize("block", blocks.BLOCKS)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_no_key_has_two_owners(task, block):
    owners = [schema.COMMON, schema.of_task(task), schema.of_block(block)]
    assert len(schema.keys(task, block)) == sum(map(len, owners))


def test_keys_stand_in_groups():
    groups = [name.rpartition(".")[0] for name in schema.keys("image_classification", "mixer")]
    assert len(set(groups)) == sum(one != other for one, other in zip(groups, groups[1:], strict=False)) + 1


def test_options_are_single_values_of_plain_types():
    for task in tasks.TASKS:
        for name, option in schema.keys(task).items():
            assert isinstance(option, Option) and type(option.default) in (bool, int, float, str, tuple), name


def test_finetuning_takes_over_the_architecture():
    architecture = {name for name, option in schema.keys().items() if option.architecture}
    assert {"model.block", "model.d_model", "model.gate", "model.vocab_size", "model.scale_embeddings"} <= architecture
    assert (
        not {"model.length", "model.dropout", "model.remat", "model.dtype", "model.survival", "model.toeplitz"}
        & architecture
    )


@pytest.mark.parametrize(
    ("name", "block", "may"),
    [
        ("steps", "gmlp", True),
        ("log.every", "gmlp", True),
        ("optimizer.lr_multipliers", "gmlp", True),
        ("mesh.fsdp", "gmlp", True),
        ("model.remat", "mixer", True),
        ("model.toeplitz", "gmlp", True),
        ("model.dft", "fnet_hybrid", True),
        ("model.toeplitz", "mixer", False),
        ("model.d_ffn", "gmlp", False),
        ("model.survival", "gmlp", False),
        ("model.block", "gmlp", False),
        ("seed", "gmlp", False),
        ("data.train", "gmlp", False),
        ("batch_size", "gmlp", False),
    ],
)
def test_what_may_change_in_the_middle_of_a_run(name, block, may):
    """A block's options say so themselves: those that leave the numbers as they are."""
    assert schema.may_change(name, block) == may
