"""Runs that start from other models: parameters resized to other shapes, keys and files that are
inherited, and what is refused."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError
from gmlp_flax.models import toeplitz
from gmlp_flax.training import loop, pretrained, warm_start
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.training import tiny
from tests.weights import states

VIT = {"block": "transformer", "positions": "absolute", "heads": 2}
BERT = {"block": "transformer", "positions": "relative", "heads": 2}


def random_arrays(shapes):
    return jax.tree.map(jnp.asarray, tiny.random_params(shapes, 1.0))


def spatial(params):
    return params["encoder"]["blocks"]["gate"]["spatial"]


def text(folder, length, **model):
    config = tiny.text_config(folder, **model)
    config.model.length = length
    task, _ = tiny.open_task(config, folder)
    return task


def images(folder, patch, **model):
    config = tiny.image_config(**model)
    config.model.patch_size = (patch, patch)
    task, _ = tiny.open_task(config, folder)
    return task


def adapt(old, new, saved, fresh=None):
    return warm_start.adapt(saved, new, old.config, "there/3", fresh or {})


def test_equal_shapes_are_copied_and_extra_leaves_ignored(text_task):
    saved = random_arrays(text_task.shapes())
    with_head = saved | {"head": {"kernel": jnp.ones(3)}}
    adapted = adapt(text_task, text_task, with_head)
    jax.tree.map(assert_array_equal, adapted, saved)


def test_crop_takes_the_corner_of_each_matrix(tmp_path):
    old = text(tmp_path, 16)
    new = text(tmp_path, 12)
    saved = random_arrays(old.shapes())
    adapted = adapt(old, new, saved)
    before = spatial(saved)
    after = spatial(adapted)
    for layer in range(2):
        taps = before["taps"][layer]
        matrix = toeplitz.expand(taps)
        new_taps = after["taps"][layer]
        cropped = toeplitz.expand(new_taps)
        assert_array_equal(cropped, matrix[:12, :12])
    cropped_bias = before["bias"][:, :12]
    assert_array_equal(after["bias"], cropped_bias)
    assert_array_equal(adapted["embedding"], saved["embedding"])


def test_same_number_of_patches_in_another_grid_is_resized(tmp_path):
    """From 2 x 2 to 1 x 4 patches: no shape says that."""
    old = images(tmp_path, 4)
    new = images(tmp_path, 4)
    new.config.model.image_size = (4, 16)
    saved = random_arrays(old.shapes())
    bias = jnp.asarray(spatial(saved)["bias"])
    grids = bias.reshape(2, 2, 2)
    resized = jax.image.resize(grids, (2, 1, 4), "bicubic")
    expected = resized.reshape(2, 4)
    adapted = adapt(old, new, saved)
    assert_allclose(spatial(adapted)["bias"], expected, rtol=1e-5)


def with_stem_of(task, saved: dict) -> dict:
    """Saved parameters, except for a stem that reads the patches of this task."""
    shapes = task.shapes()["stem"]
    return saved | {"stem": random_arrays(shapes)}


def enlarged(values):
    """Values [4, ...] over 2 x 2 patches resized to [16, ...] over 4 x 4."""
    channels = values.shape[1:]
    grid = values.reshape(2, 2, *channels)
    resized = jax.image.resize(grid, (4, 4, *channels), "bicubic")
    return resized.reshape(16, *channels)


@pytest.mark.slow
def test_cls_token_keeps_its_rows_and_columns(tmp_path):
    old = images(tmp_path, 4, pool="cls")
    new = images(tmp_path, 2, pool="cls")
    initial = random_arrays(old.shapes())
    saved = with_stem_of(new, initial)
    adapted = adapt(old, new, saved)
    before = spatial(saved)["weight"]
    after = spatial(adapted)["weight"]
    assert after.shape == (2, 17, 17)
    for old_weight, weight in zip(before, after, strict=True):
        old_row = old_weight[0]
        old_column = old_weight[:, 0]
        row = weight[0]
        column = weight[:, 0]
        assert_allclose(row[0], old_row[0])
        to_cls = enlarged(old_row[1:]) / 4
        from_cls = enlarged(old_column[1:])
        assert_allclose(row[1:], to_cls, rtol=1e-5)
        assert_allclose(column[1:], from_cls, rtol=1e-5)


@pytest.mark.parametrize(("block", "pool"), [("mixer", "mean"), ("feed_forward", "cls")])
def test_token_mlps_are_resized_to_other_patches(tmp_path, block, pool):
    """Hidden units respond to a smooth image as before, and their outputs keep their form."""
    model = {"block": block, "d_spatial": 5, "pool": pool}
    old = images(tmp_path, 4, **model)
    new = images(tmp_path, 2, **model)
    saved = with_stem_of(new, random_arrays(old.shapes()))
    adapted = adapt(old, new, saved)
    before = saved["encoder"]["blocks"]
    after = adapted["encoder"]["blocks"]
    cls = 1 if pool == "cls" else 0

    def wide(x):
        """[layers, tokens, ...] over 4 x 4 patches in place of 2 x 2."""
        of_patches = x[:, cls:]
        patches = jnp.stack([enlarged(layer) for layer in of_patches])
        of_cls = x[:, :cls]
        return np.concatenate([of_cls, patches], 1)

    def assert_wide(saved, adapted):
        assert_allclose(adapted, wide(saved), rtol=1e-5, atol=1e-6)

    old_mlp = before["token_mlp"]
    new_mlp = after["token_mlp"]
    old_input = old_mlp["proj_in"]
    new_input = new_mlp["proj_in"]
    weight = np.swapaxes(old_input["weight"], 1, 2)
    adapted_weight = np.swapaxes(new_input["weight"], 1, 2)
    expected = wide(weight)
    expected[:, cls:] /= 4
    assert_allclose(adapted_weight, expected, rtol=1e-5, atol=1e-6)
    assert_array_equal(new_input["bias"], old_input["bias"])
    jax.tree.map(assert_wide, old_mlp["proj_out"], new_mlp["proj_out"])
    if cls:
        jax.tree.map(assert_wide, before["token_norm"], after["token_norm"])


def finetuning(init_from, **model):
    """A config for classifying sentences that starts from another run."""
    config = gmlp_config.default(task="text_classification")
    config.init_from = str(init_from)
    config.model.update(model)
    return config


def resolve(config, workdir=""):
    read_start = functools.partial(warm_start.read_start, workdir=str(workdir))
    return gmlp_config.resolve(config, read_start)


def positions_of(params):
    return params["positions"]["table"]


def test_learned_positions_are_interpolated_over_patches(tmp_path):
    old = images(tmp_path, 4, pool="cls", **VIT)
    new = images(tmp_path, 2, pool="cls", **VIT)
    saved = with_stem_of(new, random_arrays(old.shapes()))
    table = positions_of(saved)
    patches = enlarged(table[1:])
    expected = np.concatenate([table[:1], patches])
    adapted = adapt(old, new, saved)
    assert_allclose(positions_of(adapted), expected, rtol=1e-5)


def test_learned_positions_are_cropped_over_text(tmp_path):
    old = text(tmp_path, 16, **VIT)
    new = text(tmp_path, 12, **VIT)
    saved = random_arrays(old.shapes())
    adapted = adapt(old, new, saved)
    assert_array_equal(positions_of(adapted), positions_of(saved)[:12])


def test_finetuning_run_inherits_model_and_vocabulary(text_run, tmp_path):
    old = gmlp_config.load(str(text_run / "config.json"))
    config = finetuning(text_run, length=12, dropout=0.1)
    resolved = resolve(config, tmp_path)
    model = resolved.config.model
    for key in ("layers", "d_model", "d_ffn", "vocab_size", "spatial"):
        assert model[key] == old.model[key]
    assert model.d_model != gmlp_config.default().model.d_model
    assert model.length == 12
    assert model.dropout == 0.1
    tokenizer = (text_run / "tokenizer.model").read_bytes()
    assert resolved.files == {"tokenizer.model": tokenizer}


def test_matching_model_has_no_note(text_run):
    assert resolve(finetuning(text_run, length=12)).notes == ()


def test_overridden_model_keys_are_reported(text_run):
    path = str(text_run / "config.json")
    old = gmlp_config.load(path).model
    config = finetuning(text_run, d_model=48, gate="linear", layers=old.layers)
    resolved = resolve(config)
    model = resolved.config.model
    assert model.d_model == old.d_model
    assert model.gate == old.gate
    [note] = resolved.notes
    assert f"{text_run}: " in note
    assert f"d_model {old.d_model} (not 48), gate 'split' (not 'linear')" in note


def test_resumed_run_does_not_need_the_pretrained_one(text_run, tmp_path):
    resolved = resolve(finetuning(text_run), tmp_path)
    (tmp_path / "config.json").write_text(gmlp_config.to_json(resolved.config))
    again = resolve(finetuning("/no/such/run"), tmp_path)
    assert again.files == {}
    assert again.config.model == resolved.config.model
    with pytest.raises(RunError, match="config.init_from is /no/such/run"):
        resolve(finetuning("/no/such/run"))


def test_model_object_gives_its_files_and_changes_no_key(text_run):
    opened = pretrained.open_model(text_run)
    config = finetuning("/no/such/run", d_model=48)
    read_start = functools.partial(warm_start.read_start, init=opened)
    resolved = gmlp_config.resolve(config, read_start)
    assert gmlp_config.differences(config, resolved.config) == {}
    assert resolved.notes == ()
    assert resolved.files.keys() == {"tokenizer.model"}


def test_image_classes_are_not_inherited(image_run, tmp_path):
    config = gmlp_config.load(str(image_run / "config.json"))
    config.init_from = str(image_run)
    resolved = resolve(config, tmp_path)
    assert gmlp_config.differences(config, resolved.config) == {}
    assert resolved.files == {}


def test_added_parameters_are_reinitialized(text_run, tmp_path, partition, capsys):
    config = finetuning(text_run, pooler=True, length=16)
    resolved = resolve(config, tmp_path)
    [other] = resolved.notes
    assert "model.pooler False (here True)" in other
    task, _ = tiny.open_task(resolved.config, tmp_path, resolved.files)
    found = warm_start.load(task, partition)
    saved = pretrained.load(text_run).params
    assert_array_equal(found["embedding"], saved["embedding"])
    assert_array_equal(found["segments"]["table"], 0)
    key = jax.random.key(resolved.config.seed)
    initial = task.init(key)
    close = functools.partial(assert_allclose, rtol=1e-6)
    for part in ("head", "pooler"):
        jax.tree.map(close, found[part], initial[part])
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith("note: ")
    assert "head/bias, head/kernel, pooler/bias, pooler/kernel, segments/table" in note


@pytest.mark.parametrize(
    ("rules", "embedding", "head"),
    [
        (("embedding$=fsdp,-", "head/kernel$=tensor,-"), ("fsdp", None), ("tensor", None)),
        ((), ("tensor", "fsdp"), ("fsdp", None)),
    ],
)
def test_parameters_are_sharded_by_the_rules_of_the_config(
    text_run, tmp_path, rules, embedding, head
):
    """Parameters of the pretrained run as well as new ones."""
    config = finetuning(text_run, length=16)
    config.mesh.rules = rules
    resolved = resolve(config, tmp_path)
    task, _ = tiny.open_task(resolved.config, tmp_path, resolved.files)
    partition = Partition.make(resolved.config.mesh)
    params = warm_start.load(task, partition)
    sharding = params["embedding"].sharding
    assert sharding.spec == PartitionSpec(*embedding)
    head_sharding = params["head"]["kernel"].sharding
    assert head_sharding.spec == PartitionSpec(*head)


def test_different_function_with_the_same_shapes_gets_a_warning(
    text_run, tmp_path, partition, capsys
):
    config = gmlp_config.load(str(text_run / "config.json"))
    config.init_from = str(text_run)
    config.model.update(scale_embeddings=True, activation="gelu_tanh")
    task, _ = tiny.open_task(config, text_run)
    warm_start.load(task, partition)
    [note] = capsys.readouterr().err.splitlines()
    assert f"note: {text_run} " in note
    assert "activation 'gelu' (here 'gelu_tanh'), scale_embeddings False (here True)" in note


@pytest.mark.parametrize(
    ("model", "has_note"),
    [
        ({"block": "long_conv"}, True),
        ({"block": "hydra", "matrix": "toeplitz"}, True),
        ({"block": "hydra", "matrix": "low_rank", "input_dependent": False}, True),
        ({"block": "hydra", "matrix": "attention"}, False),
        ({"block": "hydra"}, False),
        ({"block": "gmlp"}, False),
    ],
)
def test_weights_that_depend_on_the_length_get_a_note(tmp_path, partition, capsys, model, has_note):
    """The same parameters mix the same tokens in another way, and all shapes may fit."""
    old = text(tmp_path, 16, **model)
    new = text(tmp_path, 32, **model)
    saved = random_arrays(old.shapes())
    capsys.readouterr()
    adapted = warm_start.carry_over(saved, old.files, new, old.config, partition, "runs/old")
    printed = capsys.readouterr().err
    before = embedded(old, saved)
    after = embedded(new, adapted)
    changes = not np.allclose(before, after, rtol=1e-3, atol=1e-4)
    assert changes == has_note
    assert ("note: runs/old was trained with 16 tokens (here 32)" in printed) == has_note
    warm_start.carry_over(saved, old.files, old, old.config, partition, "runs/old")
    assert not capsys.readouterr().err


def embedded(task, params):
    """The logits of 9 tokens by a model for 9 or more."""
    tokens = np.arange(10, 19)[None]
    positions = np.arange(9)[None]
    return task.apply(params, tokens, positions, None, None)


@pytest.mark.parametrize(
    ("before", "sees"), [(False, "all tokens, .* only"), (True, "only the tokens .* all")]
)
def test_causal_and_bidirectional_models_do_not_share_weights(before, sees):
    """Taps 0 to n - 1 are offsets 0 to n - 1 in one model, and 1 - n to 0 in the other, and both may
    fit."""
    old = gmlp_config.default()
    new = gmlp_config.default(task="causal_lm")
    old.model.causal = before
    new.model.causal = not before
    with pytest.raises(RunError, match=f"each token sees {sees}.*: .* causal_lm"):
        warm_start.compare_models(old, new, "runs/old")


def test_run_starts_from_the_ema(image_run, tmp_path, partition):
    config = gmlp_config.load(str(image_run / "config.json"))
    trained = pretrained.open_model(image_run).load(unaveraged=True)
    config.init_from = str(image_run)
    task, _ = tiny.open_task(config, tmp_path)
    found = warm_start.load(task, partition)
    jax.tree.map(assert_array_equal, found, trained.params)
    is_same = jax.tree.map(np.array_equal, found, trained.unaveraged)
    assert not jax.tree.all(is_same)


def test_reinitialized_parameters_replace_the_saved_ones(tmp_path):
    task = images(tmp_path, 4)
    saved = random_arrays(task.shapes())
    saved_head = saved["head"]
    kernel = jnp.full_like(saved_head["kernel"], 7)
    saved_head["kernel"] = jnp.ones((3, 99))
    replaced = {"head/kernel": kernel}
    head = adapt(task, task, saved, replaced)["head"]
    assert_array_equal(head["kernel"], kernel)
    assert_array_equal(head["bias"], saved_head["bias"])
    assert_array_equal(head["bias"], saved["head"]["bias"])


def test_all_mismatches_are_listed(tmp_path):
    """A stem for other patches never fits. A dense projection has no grid if only one model has a cls
    token."""
    old = images(tmp_path, 4, pool="cls")
    new = images(tmp_path, 2)
    saved = random_arrays(old.shapes())
    del saved["encoder"]["norm"]["scale"]
    with pytest.raises(RunError) as caught:
        adapt(old, new, saved)
    message = str(caught.value)
    for words in ("there/3", "encoder/norm/scale is missing; ", "made for 5 tokens", "has 16"):
        assert words in message
    assert "spatial/weight is float32[2, 5, 5], not float32[2, 16, 16]" in message


@pytest.mark.parametrize(
    ("make", "old", "new", "words"),
    [
        (
            images,
            (4, {"spatial": "toeplitz"}),
            (2, {"spatial": "toeplitz"}),
            "spatial/taps, .* rows of 2, and rows of 4",
        ),
        # The position of the cls token would be taken for that of the first patch.
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
def test_parameters_that_cannot_be_resized(tmp_path, make, old, new, words):
    old_size, old_model = old
    new_size, new_model = new
    old_task = make(tmp_path, old_size, **old_model)
    new_task = make(tmp_path, new_size, **new_model)
    saved = random_arrays(old_task.shapes())
    if make is images and old_size != new_size:
        saved = with_stem_of(new_task, saved)
    with pytest.raises(RunError, match=words):
        adapt(old_task, new_task, saved)


@pytest.mark.slow
def test_run_scores_as_the_run_it_starts_from(tmp_path):
    """With a learning rate of 0, the held-out loss is the same to the last digit, also after a
    resume."""
    old = tiny.image_config()
    new = tiny.image_config()
    for config in (old, new):
        config.steps = 1
        keep_parameters(config)
    old.data.update(mean=(0.1, 0.1, 0.1), std=(0.2, 0.2, 0.2))
    old.seed = 1
    new.init_from = str(tmp_path / "old")
    first = loop.train(old, str(tmp_path / "old"))
    second = loop.train(new, str(tmp_path / "new"))
    assert first["eval"]["loss"] == second["eval"]["loss"]
    shutil.rmtree(tmp_path / "old")
    new.steps = 2
    resumed = loop.train(new, str(tmp_path / "new"))
    assert resumed["eval"]["loss"] == first["eval"]["loss"]


def one_step_config(mean: float):
    """A config of one step on images with this mean in all channels."""
    config = tiny.image_config()
    config.steps = 1
    config.data.mean = (mean, mean, mean)
    return config


@pytest.mark.slow
def test_restart_inherits_from_the_pretrained_run(tmp_path):
    """The run in the folder uses the pixel mean of one run. It is then restarted from another run."""
    loop.train(one_step_config(0.1), str(tmp_path / "first"))
    loop.train(one_step_config(0.2), str(tmp_path / "second"))
    run = tmp_path / "run"
    for name, restart, mean in (("first", False, 0.1), ("second", True, 0.2)):
        config = tiny.image_config()
        config.steps = 1
        config.init_from = str(tmp_path / name)
        loop.train(config, str(run), loop.TrainOptions(restart=restart))
        written = json.loads((run / "config.json").read_text())
        pixel_mean = written["data"]["mean"]
        assert pixel_mean == [mean] * 3


# Third-party weights, which a resumed run does not need.


def keep_parameters(config) -> None:
    """Sets the keys of a run that leaves its parameters unchanged."""
    config.optimizer.update(learning_rate=0.0, weight_decay=0.0, schedule="constant", warmup=0)


def unchanging(config):
    """The config of a run of one step that leaves its parameters unchanged."""
    config.update(steps=1, batch_size=4)
    keep_parameters(config)
    config.log.every = 1
    config.eval.every = 0
    return config


def assert_starts_and_resumes(config, source, folder, params, new=()):
    """Checks that a run has the parameters of the source, except for new ones, also after its second
    step, which it takes after the source is deleted."""
    config.init_from = str(source)
    for steps in (1, 2):
        config.steps = steps
        run = str(folder / "run")
        result = loop.train(config, run)
        assert result["step"] == steps
        trained = pretrained.load(folder / "run", "latest")
        assert trained.step == steps
        found = traverse_util.flatten_dict(trained.params, sep="/")
        wanted = traverse_util.flatten_dict(params, sep="/")
        for name, leaf in wanted.items():
            if not name.startswith(new):
                assert_array_equal(found[name], leaf, err_msg=name)
        if source.is_dir():
            shutil.rmtree(source)
        elif source.exists():
            source.unlink()
    return trained


def write_images(folder):
    """Eight images of each of two classes."""
    numbers = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            pixels = numbers.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            path = folder / name / f"{number}.png"
            Image.fromarray(pixels).save(path)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("is_described", [False, True])
def test_image_model_from_a_timm_file(tmp_path, monkeypatch, capsys, is_described):
    """Named after its model, or next to a config.json. Pixels are normalized as in the model, and the
    head for other classes is reinitialized."""
    name = states.shrink(monkeypatch, "gmlp_s16_224")
    state, params = states.of_timm(name, 3)
    source = tmp_path / f"{name}.ra3_in1k.safetensors"
    states.write(source, state)
    if is_described:
        source = tmp_path / "timm"
        states.write(source / "model.safetensors", state)
        described = {"architecture": name, "pretrained_cfg": {"mean": [0.1, 0.2, 0.3]}}
        (source / "config.json").write_text(json.dumps(described))
    config = gmlp_config.default(task="image_classification")
    source_config = pretrained.config_of(source)
    config.model.update(source_config.model)
    images_folder = write_images(tmp_path / "images")
    config.data.update(train=images_folder, heldout_share=0.25)
    unchanging(config)
    trained = assert_starts_and_resumes(config, source, tmp_path, params, new=("head/",))
    assert trained.classes == ("cat", "dog")
    assert trained.config.data.transform == "timm"
    mean = (0.1, 0.2, 0.3) if is_described else (0.5, 0.5, 0.5)
    assert trained.config.data.mean == mean
    assert "head/bias, head/kernel" in capsys.readouterr().err


@pytest.mark.slow
def test_image_model_of_another_size_from_a_timm_file(tmp_path, monkeypatch):
    """Its layers over patches are interpolated."""
    name = states.shrink(monkeypatch, "gmlp_s16_224")
    state, params = states.of_timm(name, 3)
    path = tmp_path / f"{name}.safetensors"
    states.write(path, state)
    config = gmlp_config.default(task="image_classification")
    source_config = pretrained.config_of(path)
    config.model.update(source_config.model)
    config.model.image_size = (32, 32)
    images_folder = write_images(tmp_path / "images")
    config.data.update(train=images_folder, heldout_share=0.25)
    config.init_from = str(path)
    loop.train(unchanging(config), str(tmp_path / "run"))
    trained = pretrained.load(tmp_path / "run").params
    weight = spatial(trained)["weight"]
    assert weight.shape == (2, 64, 64)
    kernel = trained["stem"]["kernel"]
    saved_kernel = params["stem"]["kernel"]
    assert_array_equal(kernel, saved_kernel)


@pytest.fixture
def bert(tmp_path):
    """A tiny BERT as transformers saves it, and its parameters in our form."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    state, params = states.of_transformers("bert")
    folder = tmp_path / "bert"
    states.write_transformers(folder, "bert", state)
    states.write_vocabulary(folder, tiny.WORDS)
    return folder, params


@pytest.mark.slow
def test_pretraining_continues_from_bert(bert, tmp_path):
    folder, params = bert
    config = gmlp_config.mutable_copy(pretrained.config_of(folder))
    config.data.update(
        train=tiny.write_corpus(tmp_path / "corpus.jsonl"),
        heldout_share=0.2,
        cache=str(tmp_path / "cache"),
    )
    vocabulary = pretrained.open_model(folder).files["tokenizer.model"]
    config = unchanging(config)
    trained = assert_starts_and_resumes(config, folder, tmp_path, params)
    assert trained.task.files["tokenizer.model"] == vocabulary
    [predictions] = trained.predict(["the [MASK] of"], top=3)
    [candidates] = predictions
    assert len(candidates) == 3


@pytest.mark.slow
def test_finetuning_from_bert(bert, tmp_path):
    """The config names no size except the length."""
    folder, params = bert
    config = finetuning(folder, length=states.SIZES["length"])
    lines = ["text,label"]
    for number, word in enumerate(tiny.WORDS):
        label = "yes" if number % 2 else "no"
        lines.append(f"the {word} of,{label}")
    content = "\n".join(lines) + "\n"
    (tmp_path / "own.csv").write_text(content)
    config.glue.task = "own"
    train = str(tmp_path / "own.csv")
    config.data.update(train=train, heldout_share=0.25)
    new = ("bias", "head/", "transform", "output_embedding")
    config = unchanging(config)
    trained = assert_starts_and_resumes(config, folder, tmp_path, params, new=new)
    assert trained.classes == ("no", "yes")
    assert trained.config.model.pooler
    d_model = states.SIZES["d_model"]
    assert trained.config.model.d_model == d_model


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [False, True])
def test_weights_that_do_not_fit_the_config_are_refused(tmp_path, monkeypatch, resumes):
    """All mismatches are named; a resumed run does not read the weights again."""
    name = states.shrink(monkeypatch, "gmlp_s16_224")
    state, _ = states.of_timm(name, 3)
    source = tmp_path / f"{name}.safetensors"
    states.write(source, state)
    config = gmlp_config.default(task="image_classification")
    source_config = pretrained.config_of(source)
    config.model.update(source_config.model)
    images_folder = write_images(tmp_path / "images")
    config.data.update(train=images_folder, heldout_share=0.25)
    config.init_from = str(source)
    unchanging(config)
    if resumes:
        loop.train(config, str(tmp_path / "run"))
        config.steps = 2
    state["norm.bias"] = np.ones(3, np.float32)
    del state["blocks.0.norm.bias"]
    states.write(source, state)
    if resumes:
        result = loop.train(config, str(tmp_path / "run"))
        assert result["step"] == 2
        return
    run = str(tmp_path / "run")
    message = raised(RunError, loop.train, config, run)
    assert str(source) in message
    assert "1 missing (blocks.0.norm.bias)" in message
    assert "norm.bias [3], not [8]" in message
    assert not (tmp_path / "run" / "run.json").exists()
