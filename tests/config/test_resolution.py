"""The final config of a run: what it inherits, the mesh that is chosen, and that nothing changes it
afterwards."""

import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import ConfigError
from tests.failures import raised


def pretrained(**model):
    config = gmlp_config.default()
    config.model.update(layers=3, d_model=48, gate="additive")
    config.model.update(model)
    return config


def finetuning(**model):
    config = gmlp_config.default("text_classification")
    config.init_from = "runs/pretrained"
    config.model.update(model)
    return config


def test_home_folders_are_named(monkeypatch):
    monkeypatch.setenv("HOME", "/home/her")
    given = gmlp_config.default()
    given.data.train = "~/books"
    given.init_from = "~/runs/t"
    given.data.heldout = "books~"
    resolved = gmlp_config.resolve(given).config
    assert resolved.data.train == "/home/her/books"
    assert resolved.init_from == "/home/her/runs/t"
    assert resolved.data.heldout == "books~"
    assert given.data.train == "~/books"


def start_from(config, **files):
    """For `resolve`: the run that every config starts from."""
    return lambda _: gmlp_config.Start("runs/pretrained", config, files)


def test_a_resolved_config_cannot_be_changed():
    given = gmlp_config.default()
    resolved = gmlp_config.resolve(given)
    assert gmlp_config.differences(given, resolved.config) == {}
    assert resolved.files == {}
    assert resolved.notes == ()
    for change in (
        lambda: setattr(resolved.config, "steps", 7),
        lambda: resolved.config.model.update(layers=7),
        lambda: resolved.config.update_from_flattened_dict({"optimizer.b1": 0.5}),
    ):
        with pytest.raises(AttributeError):
            change()
    given.model.layers = 7
    assert resolved.config.model.layers == 6


def test_a_resolved_config_is_written_and_read_as_before():
    config = pretrained()
    resolved = gmlp_config.resolve(config).config
    assert gmlp_config.to_json(resolved) == gmlp_config.to_json(config)
    assert gmlp_config.mutable_copy(resolved) == config


def test_nothing_is_read_for_a_config_with_a_wrong_value():
    config = finetuning()
    config.steps = 0
    started = []
    assert "config.steps is 0" in raised(ConfigError, gmlp_config.resolve, config, started.append)
    assert started == []


def test_finetuning_inherits_the_architecture():
    """Not how the model is run; what is set in vain is said."""
    read_start = start_from(pretrained(dropout=0.1, block="gmlp"), **{"tokenizer.model": b"t"})
    resolved = gmlp_config.resolve(finetuning(length=32), read_start)
    model = resolved.config.model
    assert model.layers == 3
    assert model.d_model == 48
    assert model.gate == "additive"
    assert model.dropout == 0.0
    assert model.length == 32
    assert resolved.files == {"tokenizer.model": b"t"}
    assert resolved.notes == ()
    [note] = gmlp_config.resolve(finetuning(d_model=48, layers=9), read_start).notes
    assert "runs/pretrained" in note
    assert "layers 3 (not 9)" in note
    assert "d_model" not in note


def test_finetuning_inherits_the_block_with_its_keys():
    start = gmlp_config.default(block="transformer")
    start.model.heads = 2
    resolved = gmlp_config.resolve(finetuning(gate="linear"), start_from(start))
    assert resolved.config.model.block == "transformer"
    assert resolved.config.model.heads == 2
    assert "gate" not in resolved.config.model
    [note] = resolved.notes
    assert "gate absent (not 'linear')" in note


def test_pretraining_inherits_no_architecture():
    config = gmlp_config.default()
    config.init_from = "runs/pretrained"
    resolved = gmlp_config.resolve(config, start_from(pretrained()))
    assert gmlp_config.differences(config, resolved.config) == {}
    assert resolved.notes == ()


def test_what_is_inherited_is_checked_as_well():
    """[CLS] of a causal model sees no text: only the other run says that the model is causal."""
    start = gmlp_config.default("causal_lm")
    start.model.causal = True
    gmlp_config.resolve(finetuning(pool="cls"))
    told = raised(ConfigError, gmlp_config.resolve, finetuning(pool="cls"), start_from(start))
    assert "config.model.pool is 'cls'" in told


def test_images_are_normalised_as_in_the_run_that_starts_them():
    """Keys at their defaults are those of the start; keys that are set, also to the default, win;
    both are said."""
    old = gmlp_config.default("image_classification")
    old.data.update(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    old.model.update(image_size=(16, 16), patch_size=(4, 4))
    new = gmlp_config.default("image_classification")
    new.model.patch_size = (4, 4)
    resolved = gmlp_config.resolve(new, start_from(old))
    assert resolved.config.data.mean == (0.1, 0.2, 0.3)
    assert resolved.config.model.image_size == (16, 16)
    assert new.data.mean == (0.5, 0.5, 0.5)
    [note] = resolved.notes
    assert "data.mean (0.1, 0.2, 0.3)" in note
    assert "model.image_size (16, 16)" in note
    new.data.std = (1.0, 1.0, 1.0)
    new.model.image_size = (8, 8)
    resolved = gmlp_config.resolve(new, start_from(old), explicit=["data.mean"])
    assert resolved.config.data.mean == (0.5, 0.5, 0.5)
    assert resolved.config.data.std == (1.0, 1.0, 1.0)
    assert resolved.config.model.image_size == (8, 8)
    [note] = resolved.notes
    assert "data.mean (0.1, 0.2, 0.3) (here (0.5, 0.5, 0.5))" in note
    again = gmlp_config.resolve(resolved.config, start_from(resolved.config))
    assert again.config == resolved.config
    assert again.notes == ()


def test_the_mesh_is_chosen_for_the_inherited_model():
    planned = []

    def choose_mesh(config):
        planned.append(config)
        return (1, 4, 2), "the fastest"

    config = finetuning()
    config.mesh.auto = True
    resolved = gmlp_config.resolve(config, start_from(pretrained()), choose_mesh)
    mesh = resolved.config.mesh
    assert (mesh.auto, mesh.data, mesh.fsdp, mesh.tensor) == (False, 1, 4, 2)
    assert [one.model.d_model for one in planned] == [48]
    assert resolved.notes == ("mesh data 1 x fsdp 4 x tensor 2: the fastest",)
    assert gmlp_config.resolve(config).config.mesh.auto
    config.mesh.auto = False
    assert gmlp_config.resolve(config, choose_mesh=choose_mesh).config.mesh.data == -1
    assert len(planned) == 1


def test_a_model_that_a_program_hands_in():
    """For the same task all of it; for another one its architecture alone, and no tokenizer is
    looked for."""
    source = pretrained(dropout=0.1, length=32)
    same = gmlp_config.default()
    same.data.tokenizer = "bytes"
    same = gmlp_config.with_model_of(same, source)
    assert same.model == source.model
    assert same.data.tokenizer == ""
    other = gmlp_config.with_model_of(finetuning(length=16, d_model=9), source)
    assert other.model.d_model == 48
    assert other.model.layers == 3
    assert other.model.gate == "additive"
    assert other.model.length == 16
    assert other.model.dropout == 0.0
    images = gmlp_config.default("image_classification")
    images.data.mean = (0.1, 0.2, 0.3)
    taken = gmlp_config.with_model_of(gmlp_config.default("image_classification"), images)
    assert taken.data.mean == (0.1, 0.2, 0.3)


def test_a_config_with_another_mesh():
    config = gmlp_config.default()
    config.mesh.update(auto=True, slices=2)
    mesh = gmlp_config.with_mesh(config, (2, 4, 1)).mesh
    assert (mesh.auto, mesh.data, mesh.fsdp, mesh.tensor, mesh.slices) == (False, 2, 4, 1, 2)
    assert config.mesh.auto
    assert gmlp_config.mesh_name((2, 4, 1)) == "data 2 x fsdp 4 x tensor 1"
