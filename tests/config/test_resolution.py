"""The final config of a run: what it inherits, the chosen mesh, and that it cannot be changed."""

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


def test_home_folders_are_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/her")
    config = gmlp_config.default()
    config.data.train = "~/books"
    config.init_from = "~/runs/t"
    config.data.heldout = "books~"
    resolved = gmlp_config.resolve(config).config
    assert resolved.data.train == "/home/her/books"
    assert resolved.init_from == "/home/her/runs/t"
    assert resolved.data.heldout == "books~"
    assert config.data.train == "~/books"


def start_from(config, **files):
    """The argument `read_start` of `resolve`, which starts every config from this run."""
    start = gmlp_config.Start("runs/pretrained", config, files)
    return lambda _: start


def test_resolved_configs_cannot_be_changed():
    config = gmlp_config.default()
    resolved = gmlp_config.resolve(config)
    assert gmlp_config.differences(config, resolved.config) == {}
    assert resolved.files == {}
    assert resolved.notes == ()
    with pytest.raises(AttributeError):
        resolved.config.steps = 7
    with pytest.raises(AttributeError):
        resolved.config.model.update(layers=7)
    with pytest.raises(AttributeError):
        resolved.config.update_from_flattened_dict({"optimizer.b1": 0.5})
    config.model.layers = 7
    assert resolved.config.model.layers == 6


def test_resolved_configs_have_the_same_json():
    config = pretrained()
    resolved = gmlp_config.resolve(config).config
    assert gmlp_config.to_json(resolved) == gmlp_config.to_json(config)
    assert gmlp_config.mutable_copy(resolved) == config


def test_nothing_is_read_for_invalid_configs():
    config = finetuning()
    config.steps = 0
    started = []
    assert "config.steps is 0" in raised(ConfigError, gmlp_config.resolve, config, started.append)
    assert started == []


def test_finetuning_inherits_the_architecture():
    """It does not inherit how the model is run. Keys that have no effect are noted."""
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
    other_layers = finetuning(d_model=48, layers=9)
    (note,) = gmlp_config.resolve(other_layers, read_start).notes
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
    (note,) = resolved.notes
    assert "gate absent (not 'linear')" in note


def test_pretraining_inherits_no_architecture():
    config = gmlp_config.default()
    config.init_from = "runs/pretrained"
    resolved = gmlp_config.resolve(config, start_from(pretrained()))
    assert gmlp_config.differences(config, resolved.config) == {}
    assert resolved.notes == ()


def test_inherited_values_are_checked():
    """[CLS] of a causal model sees no text. Only the other run says that the model is causal."""
    start = gmlp_config.default("causal_lm")
    start.model.causal = True
    config = finetuning(pool="cls")
    gmlp_config.resolve(config)
    message = raised(ConfigError, gmlp_config.resolve, config, start_from(start))
    assert "config.model.pool is 'cls'" in message


@pytest.fixture
def image_start():
    """A run on images, with its own normalization."""
    config = gmlp_config.default("image_classification")
    config.data.update(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    config.model.update(image_size=(16, 16), patch_size=(4, 4))
    return start_from(config)


@pytest.fixture
def image_config():
    config = gmlp_config.default("image_classification")
    config.model.patch_size = (4, 4)
    return config


def test_default_keys_of_images_are_inherited(image_start, image_config):
    resolved = gmlp_config.resolve(image_config, image_start)
    assert resolved.config.data.mean == (0.1, 0.2, 0.3)
    assert resolved.config.model.image_size == (16, 16)
    assert image_config.data.mean == (0.5, 0.5, 0.5)
    (note,) = resolved.notes
    assert "data.mean (0.1, 0.2, 0.3)" in note
    assert "model.image_size (16, 16)" in note


def test_explicit_keys_of_images_are_kept(image_start, image_config):
    """data.mean is set to its default."""
    image_config.data.std = (1.0, 1.0, 1.0)
    image_config.model.image_size = (8, 8)
    resolved = gmlp_config.resolve(image_config, image_start, explicit=["data.mean"])
    assert resolved.config.data.mean == (0.5, 0.5, 0.5)
    assert resolved.config.data.std == (1.0, 1.0, 1.0)
    assert resolved.config.model.image_size == (8, 8)
    (note,) = resolved.notes
    assert "data.mean (0.1, 0.2, 0.3) (here (0.5, 0.5, 0.5))" in note


def test_resolving_a_config_from_itself_changes_nothing(image_start, image_config):
    resolved = gmlp_config.resolve(image_config, image_start)
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
    assert not mesh.auto
    assert (mesh.data, mesh.fsdp, mesh.tensor) == (1, 4, 2)
    (planned_config,) = planned
    assert planned_config.model.d_model == 48
    assert resolved.notes == ("mesh data 1 x fsdp 4 x tensor 2: the fastest",)


def test_the_mesh_is_only_chosen_if_it_is_automatic():
    config = finetuning()
    config.mesh.auto = True
    without_planner = gmlp_config.resolve(config)
    assert without_planner.config.mesh.auto
    config.mesh.auto = False
    resolved = gmlp_config.resolve(config, choose_mesh=lambda _: pytest.fail("it was planned"))
    assert resolved.config.mesh.data == -1


def test_passed_models_of_the_same_task_set_all_keys_of_the_model():
    source = pretrained(dropout=0.1, length=32)
    config = gmlp_config.default()
    config.data.tokenizer = "bytes"
    config = gmlp_config.with_model_of(config, source)
    assert config.model == source.model
    assert config.data.tokenizer == "", "the model has its own tokenizer"


def test_passed_models_of_another_task_set_the_architecture():
    source = pretrained(dropout=0.1, length=32)
    config = finetuning(length=16, d_model=9)
    model = gmlp_config.with_model_of(config, source).model
    assert model.d_model == 48
    assert model.layers == 3
    assert model.gate == "additive"
    assert model.length == 16
    assert model.dropout == 0.0


def test_passed_models_of_images_set_the_normalization():
    source = gmlp_config.default("image_classification")
    source.data.mean = (0.1, 0.2, 0.3)
    config = gmlp_config.default("image_classification")
    config = gmlp_config.with_model_of(config, source)
    assert config.data.mean == (0.1, 0.2, 0.3)


def test_with_mesh_sets_the_axes():
    config = gmlp_config.default()
    config.mesh.update(auto=True, slices=2)
    mesh = gmlp_config.with_mesh(config, (2, 4, 1)).mesh
    assert not mesh.auto
    assert (mesh.data, mesh.fsdp, mesh.tensor) == (2, 4, 1)
    assert mesh.slices == 2
    assert config.mesh.auto
    assert gmlp_config.mesh_name((2, 4, 1)) == "data 2 x fsdp 4 x tensor 1"
