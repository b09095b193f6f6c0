import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.errors import RunError
from gmlp_flax.models import toeplitz
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loading, loop, warm_start
from gmlp_flax.training.partition import Partition
from tests.training import tiny

VIT = {"block": "transformer", "positions": "absolute", "heads": 2}
BERT = {"block": "transformer", "positions": "relative", "heads": 2}


def random(shapes):
    return jax.tree.map(jnp.asarray, tiny.random_params(shapes, 1.0))


def spatial(params):
    return params["encoder"]["blocks"]["gate"]["spatial"]


def text(folder, length, **model):
    config = tiny.text_config(folder, **model)
    config.model.length = length
    return MaskedLanguageModeling(config, str(folder))


def images(folder, patch, **model):
    config = tiny.image_config(**model)
    config.model.patch_size = (patch, patch)
    return ImageClassification(config, str(folder))


def adapt(old, new, saved, fresh=None):
    return warm_start.adapt(saved, new, old.config, "there/3", fresh or {})


def test_same_shapes_are_taken_as_they_are_and_more_does_no_harm(text_task):
    saved = random(text_task.shapes())
    adapted = adapt(text_task, text_task, saved | {"head": {"kernel": jnp.ones(3)}})
    jax.tree.map(np.testing.assert_array_equal, adapted, saved)


def test_crop_takes_the_corner_of_each_layers_matrix(tmp_path):
    old, new = text(tmp_path, 16), text(tmp_path, 12)
    saved = random(old.shapes())
    found = adapt(old, new, saved)
    for layer in range(2):
        matrix = toeplitz.expand(spatial(saved)["taps"][layer])
        np.testing.assert_array_equal(
            toeplitz.expand(spatial(found)["taps"][layer]), matrix[:12, :12]
        )
    np.testing.assert_array_equal(spatial(found)["bias"], spatial(saved)["bias"][:, :12])
    np.testing.assert_array_equal(found["embedding"], saved["embedding"])


def test_as_many_patches_in_another_grid_are_resized(tmp_path):
    """From 2 x 2 to 1 x 4 patches: no shape says that."""
    old, new = images(tmp_path, 4), images(tmp_path, 4)
    new.config.model.image_size = (4, 16)
    saved = random(old.shapes())
    bias = jnp.asarray(spatial(saved)["bias"]).reshape(2, 2, 2)
    expected = jax.image.resize(bias, (2, 1, 4), "bicubic").reshape(2, 4)
    np.testing.assert_allclose(spatial(adapt(old, new, saved))["bias"], expected, rtol=1e-5)


def test_a_cls_token_keeps_its_rows_and_columns(tmp_path):
    old, new = images(tmp_path, 4, pool="cls"), images(tmp_path, 2, pool="cls")
    saved = random(old.shapes()) | {"stem": random(new.shapes()["stem"])}
    weight, old_weight = (spatial(tree)["weight"] for tree in (adapt(old, new, saved), saved))
    assert weight.shape == (2, 17, 17)
    np.testing.assert_allclose(weight[:, 0, 0], old_weight[:, 0, 0])
    for layer in range(2):
        to_cls = (
            jax.image.resize(old_weight[layer, 0, 1:].reshape(2, 2), (4, 4), "bicubic").reshape(-1)
            / 4
        )
        from_cls = jax.image.resize(
            old_weight[layer, 1:, 0].reshape(2, 2), (4, 4), "bicubic"
        ).reshape(-1)
        np.testing.assert_allclose(weight[layer, 0, 1:], to_cls, rtol=1e-5)
        np.testing.assert_allclose(weight[layer, 1:, 0], from_cls, rtol=1e-5)


@pytest.mark.parametrize(("block", "pool"), [("mixer", "mean"), ("feed_forward", "cls")])
def test_token_mlps_are_resized_to_other_patches(tmp_path, block, pool):
    """Hidden units respond to a smooth image as before, and their outputs keep their form."""
    model = {"block": block, "d_spatial": 5, "pool": pool}
    old, new = images(tmp_path, 4, **model), images(tmp_path, 2, **model)
    saved = random(old.shapes()) | {"stem": random(new.shapes()["stem"])}
    cls = int(pool == "cls")

    def wide(x):
        """[layers, tokens, ...] over 4 x 4 patches in place of 2 x 2."""
        patches = x[:, cls:].reshape(2, 2, 2, -1)
        patches = jax.image.resize(patches, (2, 4, 4, patches.shape[-1]), "bicubic").reshape(
            2, 16, *x.shape[2:]
        )
        return np.concatenate([x[:, :cls], patches], 1)

    before, after = (tree["encoder"]["blocks"] for tree in (saved, adapt(old, new, saved)))
    read, found = (
        np.swapaxes(blocks["token_mlp"]["proj_in"]["weight"], 1, 2) for blocks in (before, after)
    )
    np.testing.assert_allclose(
        found, wide(read) / np.array([1] * cls + [4] * 16)[:, None], rtol=1e-5, atol=1e-6
    )
    for of in (
        lambda blocks: blocks["token_mlp"]["proj_out"],
        lambda blocks: blocks["token_norm"] if cls else {},
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(y, wide(x), rtol=1e-5, atol=1e-6),
            of(before),
            of(after),
        )
    np.testing.assert_array_equal(
        after["token_mlp"]["proj_in"]["bias"], before["token_mlp"]["proj_in"]["bias"]
    )


def test_learned_positions_are_interpolated_over_patches_and_cropped_over_text(tmp_path):
    old, new = (images(tmp_path, patch, pool="cls", **VIT) for patch in (4, 2))
    saved = random(old.shapes()) | {"stem": random(new.shapes()["stem"])}
    table, old_table = (tree["positions"]["table"] for tree in (adapt(old, new, saved), saved))
    width = old_table.shape[1]
    expected = jax.image.resize(
        old_table[1:].reshape(2, 2, width), (4, 4, width), "bicubic"
    ).reshape(16, width)
    np.testing.assert_allclose(table, np.concatenate([old_table[:1], expected]), rtol=1e-5)
    old, new = (text(tmp_path, length, **VIT) for length in (16, 12))
    saved = random(old.shapes())
    np.testing.assert_array_equal(
        adapt(old, new, saved)["positions"]["table"], saved["positions"]["table"][:12]
    )


def finetuning(init_from, **model):
    """A config for classifying sentences that starts from another run."""
    config = gmlp_config.default(task="text_classification")
    config.init_from = str(init_from)
    config.model.update(model)
    return config


def test_a_finetuning_run_takes_over_model_and_vocabulary(text_run, tmp_path):
    old = gmlp_config.load(str(text_run / "config.json"))
    config, files = warm_start.inherit(finetuning(text_run, length=12, dropout=0.1), str(tmp_path))
    for key in ("layers", "d_model", "d_ffn", "vocab_size", "spatial"):
        assert config.model[key] == old.model[key]
    assert config.model.d_model != gmlp_config.default().model.d_model
    assert (config.model.length, config.model.dropout) == (12, 0.1)
    assert files == {"tokenizer.model": (text_run / "tokenizer.model").read_bytes()}


def test_what_is_given_of_the_model_in_vain_is_said(text_run, tmp_path, capsys):
    warm_start.inherit(finetuning(text_run, length=12), str(tmp_path))
    assert capsys.readouterr().err == ""
    old = gmlp_config.load(str(text_run / "config.json"))
    given = finetuning(text_run, d_model=48, gate="linear", layers=old.model.layers)
    config, _ = warm_start.inherit(given, str(tmp_path))
    assert (config.model.d_model, config.model.gate) == (old.model.d_model, old.model.gate)
    (note,) = capsys.readouterr().err.splitlines()
    assert (
        f"{text_run}: " in note
        and f"d_model {old.model.d_model} (not 48), gate 'split' (not 'linear')" in note
    )


def test_a_run_that_goes_on_does_not_need_the_other_one(text_run, tmp_path):
    config, _ = warm_start.inherit(finetuning(text_run), str(tmp_path))
    (tmp_path / "config.json").write_text(gmlp_config.to_json(config))
    again, files = warm_start.inherit(finetuning("/no/such/run"), str(tmp_path))
    assert files == {} and again.model == config.model


def test_classes_of_images_are_not_taken_over(image_run, tmp_path):
    config = gmlp_config.load(str(image_run / "config.json"))
    config.init_from = str(image_run)
    assert warm_start.inherit(config, str(tmp_path)) == (config, {})


def test_what_a_finetuned_model_adds_starts_anew(text_run, tmp_path, partition, capsys):
    config, files = warm_start.inherit(finetuning(text_run, pooler=True, length=16), str(tmp_path))
    task = tasks.create(config, str(tmp_path), files)
    found = warm_start.load(task, partition)
    saved = loading.load(str(text_run), "best").params
    np.testing.assert_array_equal(found["embedding"], saved["embedding"])
    np.testing.assert_array_equal(found["segments"]["table"], 0)
    own = task.init(jax.random.key(config.seed))
    for part in ("head", "pooler"):
        jax.tree.map(
            lambda new, fresh: np.testing.assert_allclose(new, fresh, rtol=1e-6),
            found[part],
            own[part],
        )
    other, note = capsys.readouterr().err.splitlines()
    assert "model.pooler False (here True)" in other and note.startswith("note: ")
    assert "head/bias, head/kernel, pooler/bias, pooler/kernel, segments/table" in note


def test_parameters_lie_as_the_rules_of_the_config_say(text_run, tmp_path):
    """Parameters from the other run as well as new ones."""
    config, files = warm_start.inherit(finetuning(text_run, length=16), str(tmp_path))
    config.mesh.rules = ("embedding$=fsdp,-", "head/kernel$=tensor,-")
    task = tasks.create(config, str(tmp_path), files)
    found = warm_start.load(task, Partition.make(config.mesh))
    assert found["embedding"].sharding.spec == PartitionSpec("fsdp", None)
    assert found["head"]["kernel"].sharding.spec == PartitionSpec("tensor", None)
    plain = warm_start.load(task, Partition.make())
    assert plain["embedding"].sharding.spec == PartitionSpec("tensor", "fsdp")
    assert plain["head"]["kernel"].sharding.spec == PartitionSpec("fsdp", None)


def test_another_function_with_the_same_shapes_is_told(text_run, tmp_path, partition, capsys):
    config = gmlp_config.load(str(text_run / "config.json"))
    config.init_from = str(text_run)
    config.model.update(scale_embeddings=True, activation="gelu_tanh")
    warm_start.load(tasks.create(config, str(text_run)), partition)
    (note,) = capsys.readouterr().err.splitlines()
    assert f"note: {text_run} " in note
    assert "activation 'gelu' (here 'gelu_tanh'), scale_embeddings False (here True)" in note


@pytest.mark.parametrize(
    ("before", "sees"), [(False, "all tokens, .* only"), (True, "only the tokens .* all")]
)
def test_a_causal_model_and_one_that_is_not_share_no_weights(before, sees):
    """Taps 0 to n - 1 of the one are offsets 0 to n - 1, of the other 1 - n to 0, and both may
    fit."""
    old, new = gmlp_config.default(), gmlp_config.default(task="causal_lm")
    old.model.causal, new.model.causal = before, not before
    with pytest.raises(RunError, match=f"each token sees {sees}.*: .* causal_lm"):
        warm_start.compare_models(old, new, "runs/old")


def test_the_running_mean_is_what_others_start_from(image_run, tmp_path, partition):
    config, trained = (
        gmlp_config.load(str(image_run / "config.json")),
        loading.load(str(image_run), "latest"),
    )
    config.init_from = str(image_run)
    found = warm_start.load(tasks.create(config, str(tmp_path)), partition)
    jax.tree.map(np.testing.assert_array_equal, found, trained.ema)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: np.any(a != b), found, trained.params)))


def test_fresh_parameters_replace_the_saved_ones(tmp_path):
    task = images(tmp_path, 4)
    saved = random(task.shapes())
    kernel = jnp.full_like(saved["head"]["kernel"], 7)
    saved["head"]["kernel"] = jnp.ones((3, 99))
    found = adapt(task, task, saved, {"head/kernel": kernel})
    np.testing.assert_array_equal(found["head"]["kernel"], kernel)
    np.testing.assert_array_equal(found["head"]["bias"], saved["head"]["bias"])


def test_all_mismatches_are_listed(tmp_path):
    """A stem for other patches never fits. A dense projection has no grid if only one side has a
    cls token."""
    old, new = images(tmp_path, 4, pool="cls"), images(tmp_path, 2)
    saved = random(old.shapes())
    del saved["encoder"]["norm"]["scale"]
    with pytest.raises(RunError) as caught:
        adapt(old, new, saved)
    for words in ("there/3", "encoder/norm/scale is missing; ", "made for 5 tokens", "has 16"):
        assert words in str(caught.value)
    assert "spatial/weight is float32[2, 5, 5], not float32[2, 16, 16]" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "old", "new", "words"),
    [
        (
            images,
            (4, {"spatial": "toeplitz"}),
            (2, {"spatial": "toeplitz"}),
            "spatial/taps, .* rows of 2, and rows of 4",
        ),
        # A row of positions for the cls token would be taken for the first patch.
        (
            images,
            (4, VIT | {"pool": "cls"}),
            (4, VIT),
            r"positions/table is float32\[5, 8\], not float32\[4, 8\]",
        ),
        (
            images,
            (4, {"block": "mixer"}),
            (2, {"block": "mixer", "d_model": 12}),
            r"2, 8.*, not .*2, 12.*; and 2 more",
        ),
        (text, (12, VIT), (16, VIT), r"positions/table is float32\[12, 8\], not float32\[16, 8\]"),
        (
            text,
            (16, BERT | {"relative_buckets": 8}),
            (16, BERT),
            r"relative/bias is .*2, 2, 8.*, not .*2, 2, 31",
        ),
        (
            text,
            (16, {"spatial": "dense"}),
            (12, {"spatial": "dense"}),
            r"weight is .*2, 16, 16.*, not .*2, 12, 12",
        ),
    ],
)
def test_what_fits_no_other_length(tmp_path, make, old, new, words):
    (old_size, old_model), (new_size, new_model) = old, new
    saved, wanted = make(tmp_path, old_size, **old_model), make(tmp_path, new_size, **new_model)
    stem = (
        {"stem": random(wanted.shapes()["stem"])} if make is images and old_size != new_size else {}
    )
    with pytest.raises(RunError, match=words):
        adapt(saved, wanted, random(saved.shapes()) | stem)


def test_images_are_normalised_as_in_the_run_that_starts_them(capsys):
    """Keys at their defaults are those of the start; keys that are set, also to the default, win;
    both are said."""
    old, new = tiny.image_config(), tiny.image_config()
    old.data.update(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    old.model.update(image_size=(16, 16), channels=3)
    new.init_from, new.model.channels, new.model.image_size = "runs/old", 3, (224, 224)
    names = ImageClassification.inherited_keys
    found = warm_start.inherit_keys(new, old, names)
    assert (found.data.mean, found.data.std, found.model.image_size) == (
        (0.1, 0.2, 0.3),
        (0.4, 0.5, 0.6),
        (16, 16),
    )
    assert new.data.mean == (0.5, 0.5, 0.5)
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "runs/old" in line
        and "data.mean (0.1, 0.2, 0.3)" in line
        and "model.image_size (16, 16)" in line
    )
    new.data.std, new.model.image_size = (1.0, 1.0, 1.0), (8, 8)
    found = warm_start.inherit_keys(new, old, names, given=["data.mean"])
    assert (found.data.mean, found.data.std, found.model.image_size) == (
        new.data.mean,
        (1.0, 1.0, 1.0),
        (8, 8),
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "data.mean (0.1, 0.2, 0.3) (here (0.5, 0.5, 0.5))" in line
    assert warm_start.inherit_keys(found, found, names) == found and not capsys.readouterr().err


def test_a_run_that_starts_from_another_scores_as_that_one(tmp_path):
    """With a rate of 0 the held-out loss is the same to the last digit, and it is after a
    resume."""
    old, new = tiny.image_config(), tiny.image_config()
    for config in (old, new):
        config.steps = 1
        config.optimizer.update(learning_rate=0.0, weight_decay=0.0, schedule="constant", warmup=0)
    old.data.update(mean=(0.1, 0.1, 0.1), std=(0.2, 0.2, 0.2))
    old.seed, new.init_from = 1, str(tmp_path / "old")
    first = loop.train(old, str(tmp_path / "old"))
    second = loop.train(new, str(tmp_path / "new"))
    assert first["eval"]["loss"] == second["eval"]["loss"]
    shutil.rmtree(tmp_path / "old")
    new.steps = 2
    assert loop.train(new, str(tmp_path / "new"))["eval"]["loss"] == first["eval"]["loss"]
