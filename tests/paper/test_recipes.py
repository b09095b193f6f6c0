"""Names of published models -> config files that build them, and the settings of smaller scales."""

import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.models import blocks
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.paper.tables import TUNED


@pytest.mark.parametrize(
    ("model", "scale", "path"),
    [
        ("sgu", "cpu", "c4_ablation:sgu,scale=small"),
        ("gmlp_36,data=4", "gpu", "c4_ablation:gmlp_36,data=4,scale=gpu"),
        ("gmlp_base", "gpu", "c4_bert:gmlp_base,scale=gpu"),
        ("bert_base_rel", "cpu", "c4_bert:bert_base_rel,scale=small"),
        ("gmlp_s", "paper", "imagenet:gmlp_s"),
        ("gmlp_s", "cpu", "cifar10:gmlp,scale=small"),
    ],
)
def test_published_models_have_configs(model, scale, path):
    assert recipes.published(model, scale) == path
    file, _, arg = path.partition(":")
    trained = gmlp_config.from_file(file, arg)
    gmlp_config.validate(trained)
    name, _, _ = model.partition(",")
    published = PUBLISHED[name].spec
    assert trained.model.block == blocks.name_of(published.block)
    if scale == "paper":
        assert trained.model.layers == published.layers
    else:
        assert trained.model.layers != published.layers


@pytest.mark.parametrize(
    ("scale", "added"), [("paper", ""), ("gpu", ",scale=gpu"), ("cpu", ",scale=small")]
)
def test_finetuning_has_the_scale_of_its_pretraining(scale, added):
    path = TUNED["sst2"].of("", scale)
    assert path == f"finetune_glue:sst2{added}"
    config = gmlp_config.open_config(path)
    gmlp_config.validate(config)


@pytest.mark.parametrize("tokens", [128, 512])
def test_small_language_models_see_the_same_tokens_per_step(tokens):
    config = gmlp_config.default()
    setting = recipes.Setting(3e-3, ("relative/bias=8",), True)
    recipes.small_language(config, "small", setting, tokens, {"layers": 2})
    assert config.batch_size * tokens == 2048
    assert config.eval.examples * tokens == 2048 * 128
    assert config.masking.max_predictions == -(-15 * tokens // 100)
    assert config.model.layers == 2
    assert config.model.length == tokens
    assert config.model.embedding_norm is True
    assert config.optimizer.learning_rate == 3e-3
    assert config.optimizer.lr_multipliers == ("relative/bias=8",)


def test_small_language_models_keep_their_norm_multipliers_and_d_spatial_on_a_gpu():
    """Only the learning rate was searched again: docs/results/table3.md."""
    config = gmlp_config.default(block="mixer")
    setting = recipes.Setting(3e-3, ("token_mlp=4",), True)
    sizes = {"layers": 2, "d_spatial": 384, "d_ffn": 384}
    recipes.small_language(config, "gpu", setting, 128, sizes)
    assert config.optimizer.learning_rate == 4e-3
    assert config.optimizer.lr_multipliers == ("token_mlp=4",)
    assert config.model.embedding_norm
    assert config.model.layers == 4
    assert config.model.d_model == 256
    assert config.model.d_ffn == 768
    assert config.model.d_spatial == 384
