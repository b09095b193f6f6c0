"""Every config file with every documented argument is valid and builds the published model."""

import io
import runpy
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.data.readers import images
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks, parameters
from gmlp_flax.paper import long_range, recipes
from gmlp_flax.paper import published as sizes
from gmlp_flax.paper.tables import TABLES
from tests.failures import raised

ABLATION_FILE = runpy.run_path("configs/c4_ablation.py")
ABLATION = tuple(ABLATION_FILE["MODELS"])
SMALL = tuple(ABLATION_FILE["SMALL"])
BERT = tuple(runpy.run_path("configs/c4_bert.py")["MODELS"])
COMPARED = TABLES["alternatives"].rows
LENGTHS = runpy.run_path("configs/long_text.py")["LENGTHS"]
# The layers of models in the ablation. Rows of Table 4 and Figure 8 have more or fewer.
ABLATION_LAYERS = {"gmlp_": 4, "transformer_": 2, "amlp_": 3}


def valid(path: str, argument: str = ""):
    """The config of a file, validated."""
    options = config_lib.from_file(f"configs/{path}.py", argument)
    config_lib.validate(options)
    return options


def shapes_of(options):
    """The shapes of the parameters of a config's model."""
    task = tasks.find(options.task)(options)
    return task.shapes()


def param_count(options) -> int:
    return parameters.count(shapes_of(options))


def check_published(options, name):
    """Fails unless a config has the parameters and settings of a model of the paper."""
    assert param_count(options) == sizes.param_count(sizes.PUBLISHED[name])
    assert options.optimizer.clip == 0
    assert options.optimizer.schedule == "linear"
    assert options.model.dtype == "bfloat16"


@pytest.mark.parametrize("name", ABLATION)
def test_the_papers_models_of_the_ablations(name):
    options = valid("c4_ablation", name)
    check_published(options, name)
    assert options.model.length == 128
    assert options.batch_size == 2048
    assert options.steps == 125_000
    assert options.masking.max_predictions == 20


@pytest.mark.parametrize("name", BERT)
def test_the_papers_models_of_table_5(name):
    options = valid("c4_bert", name)
    check_published(options, name)
    assert options.model.length == 512
    assert options.batch_size == 256
    assert options.steps == 1_000_000
    assert options.masking.max_predictions == 77


def encoder_size(options) -> int:
    """Parameters of the encoder: without embeddings, positions, stem and head."""
    return parameters.count(shapes_of(options)["encoder"])


class Scale(NamedTuple):
    """The sizes of the compared mixers at a scale."""

    name: str
    encoder_size: float
    depth: int  # relative to scale=small
    steps: int
    batch_size: int


SCALES = [
    Scale("small", 0.4e6, 1, 900, 16),
    Scale("gpu", 3.16e6, 2, 10_000, 256),
]


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES, ids=lambda scale: scale.name)
def test_the_alternatives_have_the_same_number_of_parameters(scale):
    """To 2 %, with equal depths: two layers of two branches, or four of gMLP's one. aMLP is
    shallower."""
    layers = {"sgu": 4, "depthwise": 4, "amlp_36": 3}
    for name in COMPARED:
        argument = f"{name},scale={scale.name}"
        options = valid("c4_ablation", argument)
        size = encoder_size(options)
        assert size == pytest.approx(scale.encoder_size, rel=0.02), name
        depth = scale.depth * layers.get(name, 2)
        assert options.model.layers == depth, name
        assert options.steps == scale.steps
        assert options.batch_size == scale.batch_size


def params_without_vocabulary(options) -> int:
    """Parameters without the embeddings and the output bias of each token."""
    model = options.model
    return param_count(options) - model.vocab_size * (model.d_model + 1)


def relative_depth(options, name) -> float:
    """The layers of a model, relative to those of the ablation's."""
    for prefix, layers in ABLATION_LAYERS.items():
        if name.startswith(prefix):
            return options.model.layers / layers
    return 1


@pytest.mark.parametrize("name", SMALL)
def test_small_rows_have_equal_sizes(name):
    """In proportion to their depths."""
    options = valid("c4_ablation", f"{name},scale=small")
    depth = relative_depth(options, name)
    size = params_without_vocabulary(options) / depth
    largest = 0.48e6 if name.startswith("thin_") else 0.42e6
    assert 0.39e6 < size < largest


@pytest.mark.parametrize("name", SMALL)
def test_rows_have_twice_the_width_and_depth_on_a_gpu(name):
    small = valid("c4_ablation", f"{name},scale=small")
    gpu = valid("c4_ablation", f"{name},scale=gpu")
    width = 2 * small.model.d_model
    assert gpu.model.d_model == width
    layers = 2 * small.model.layers
    assert gpu.model.layers == layers
    assert param_count(gpu)


@pytest.mark.parametrize("scale", ["paper", "small", "gpu"])
def test_more_data_changes_only_the_number_of_steps(scale):
    once = valid("c4_ablation", f"sgu,scale={scale}")
    four_times = valid("c4_ablation", f"sgu,scale={scale},data=4")
    changed = config_lib.differences(once, four_times)
    assert changed.keys() == {"steps", "eval.every", "checkpoint.every"}
    for before, after in changed.values():
        assert 4 * before == after


def published_without_vocabulary(name) -> int:
    """Parameters of a published model without the embeddings and the output bias of each token."""
    model = sizes.PUBLISHED[name]
    return sizes.param_count(model) - sizes.VOCAB_SIZE * (model.spec.d_model + 1)


@pytest.mark.parametrize("scale", ["small", "gpu"])
def test_small_models_of_table_5_keep_their_proportions(scale):
    """Parameters without the vocabulary, relative to BERT-base, are within a factor of 1.5 of the
    paper's (Table 5)."""
    bert = params_without_vocabulary(valid("c4_bert", f"bert_base,scale={scale}"))
    published_bert = published_without_vocabulary("bert_base")
    for name in BERT:
        options = valid("c4_bert", f"{name},scale={scale}")
        ratio = params_without_vocabulary(options) / bert
        published_ratio = published_without_vocabulary(name) / published_bert
        relative_ratio = ratio / published_ratio
        assert 2 / 3 < relative_ratio < 3 / 2, name


@pytest.mark.parametrize(("scale", "tokens"), [("small", 2048), ("gpu", 32_768)])
def test_batches_of_small_models_of_table_5(scale, tokens):
    options = valid("c4_bert", f"gmlp_base,scale={scale}")
    assert options.model.length == 256
    assert options.batch_size * options.model.length == tokens
    assert options.masking.max_predictions == 39  # 15 %


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scale", ["base", "small"])
def test_long_inputs(length, scale):
    tokens = int(length)
    options = valid("long_text", f"{length},scale={scale}")
    assert options.model.length == tokens
    assert options.model.toeplitz == "auto"
    shapes = shapes_of(options)
    gate = shapes["encoder"]["blocks"]["gate"]
    taps = gate["spatial"]["taps"]
    taps_per_layer = 2 * tokens - 1
    assert taps.shape == (options.model.layers, taps_per_layer)


@pytest.mark.parametrize(
    ("path", "arg", "message"),
    [
        ("c4_ablation", "sgv", "did you mean 'sgu'"),
        ("c4_ablation", "sgu,data=3", "data=1|2|4|8"),
        (
            "c4_ablation",
            "amlp_36_128,scale=small",
            "amlp_36_128 has no scale=small: expected one of bert,",
        ),
        ("c4_bert", "gmlp_base,scale=cpu", "scale=paper|small|gpu"),
        ("own_text", "tinny", "did you mean 'tiny'"),
        ("own_text", "no/such.txt", "there is no file or folder no/such.txt"),
        ("own_text", "amlp_base,scale=small", "has 'scale=small': expected nothing more"),
        ("own_images", "smal", "did you mean 'small'"),
        ("own_images", "no/such", "there is no file or folder no/such"),
        ("long_text", "4097", "did you mean '4096'"),
        ("lra_image", "vit", "expected one of gmlp, amlp, "),
        ("lra_text", "gmlp,length=1000", "length=1024|2048|3072|4096|256"),
    ],
)
def test_invalid_arguments_are_refused_with_the_valid_ones(path, arg, message):
    path_in_configs = f"configs/{path}.py"
    assert message in raised(ConfigError, config_lib.from_file, path_in_configs, arg)


@pytest.mark.parametrize(
    ("arg", "layers"), [("", 6), ("small", 6), ("tiny", 4), ("base", 48), ("amlp_base", 36)]
)
def test_own_text(arg, layers):
    options = valid("own_text", arg)
    assert options.model.layers == layers
    assert options.data.train == ""
    has_attention = bool(options.model.d_attn)
    assert has_attention == ("amlp" in arg)


@pytest.mark.parametrize(
    ("name", "size", "chosen"),
    [
        ("a.txt", 9e6, "tiny"),
        ("a.txt", 11e6, "small"),
        ("a.jsonl.gz", 2e6, "tiny"),
        ("a.jsonl.gz", 3e6, "small"),
    ],
)
def test_the_size_of_own_text_suits_the_size_of_the_text(tmp_path, capsys, name, size, chosen):
    folder = tmp_path / "texts"
    folder.mkdir()
    with open(folder / name, "wb") as file:
        file.truncate(int(size))
    expected = valid("own_text", chosen)
    for path in (folder / name, folder):
        options = valid("own_text", str(path))
        model = options.model.to_dict()
        assert model == expected.model.to_dict()
        assert options.steps == expected.steps
        assert options.data.train == str(path)
        assert f"own_text:{chosen} for " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "layers", "vocab_size", "steps"),
    [
        ("tiny", 4, 2000, 500),
        ("small", 6, 8000, 2000),
    ],
)
def test_sizes_of_own_text(size, layers, vocab_size, steps):
    options = valid("own_text", size)
    assert options.model.layers == layers
    assert options.model.vocab_size == vocab_size
    assert options.steps == steps


@pytest.mark.parametrize(("arg", "layers"), [("", 8), ("small", 8), ("tiny", 4), ("gmlp_ti", 30)])
def test_own_images(arg, layers):
    options = valid("own_images", arg)
    assert options.model.layers == layers
    assert options.data.train == ""
    assert options.steps == (100_000 if arg == "gmlp_ti" else 2000)


def write_images(folder: Path, count: int) -> None:
    """Two classes with half of `count` images of one pixel each."""
    pixel = io.BytesIO()
    Image.new("RGB", (1, 1)).save(pixel, "png")
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(count // 2):
            image_path = folder / name / f"{number}.png"
            image_path.write_bytes(pixel.getvalue())


@pytest.mark.parametrize(
    ("count", "size", "layers", "steps"),
    [
        (4, "tiny", 4, 100),
        (60, "tiny", 4, 100),
        (600, "tiny", 4, 440),
        (6000, "small", 8, 2000),
    ],
)
def test_own_images_suits_the_number_of_images(tmp_path, capsys, count, size, layers, steps):
    folder = tmp_path / "photos"
    write_images(folder, count)
    options = valid("own_images", str(folder))
    dataset = images.read(str(folder))[""]
    training = dataset.hold_out("train", options.data.heldout_share)
    trained_on = len(training)
    passes = steps * 64 / trained_on
    assert options.model.layers == layers
    assert options.steps == steps
    assert options.eval.every == options.checkpoint.every == steps // 4
    assert options.optimizer.warmup == steps // 10
    assert options.data.train == str(folder)
    line = capsys.readouterr().err
    sentence = f"own_images:{size}, {steps:,} steps for {trained_on:,} images"
    assert sentence in line
    assert f"{passes:,.0f} passes over them" in line


def test_own_images_counts_the_training_split(tmp_path, capsys):
    write_images(tmp_path / "photos" / "train", 6)
    write_images(tmp_path / "photos" / "test", 4)
    valid("own_images", str(tmp_path / "photos"))
    assert "for 6 images" in capsys.readouterr().err


def test_overrides_have_priority_over_the_number_of_images(tmp_path):
    write_images(tmp_path / "photos", 4)
    config = config_lib.open_config(f"configs/own_images.py:{tmp_path / 'photos'}")
    flags = ["--config.steps=7", "--config.model.layers=3", "--config.optimizer.warmup=2"]
    options, _ = config_lib.apply_overrides(config, ["gmlp", *flags])
    assert options.steps == 7
    assert options.model.layers == 3
    assert options.optimizer.warmup == 2


def test_ambiguous_image_folders_have_the_default_size(tmp_path, capsys):
    """The run may read them with another key, here config.data.split=all."""
    write_images(tmp_path / "photos" / "train", 4)
    write_images(tmp_path / "photos" / "cats", 4)
    options = valid("own_images", str(tmp_path / "photos"))
    assert options.model.layers == 8
    line = capsys.readouterr().err
    assert (
        line == f"own_images:small, because the images in {tmp_path}/photos could not be counted\n"
    )


@pytest.mark.parametrize("config", ["own_images", "own_text"])
def test_folders_with_the_name_of_a_size_are_reported(config, tmp_path, monkeypatch, capsys):
    valid(config, "tiny")
    assert capsys.readouterr().err == ""
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = config_lib.open_config(f"{config}:tiny")
    assert opened.data.train in ("", None)
    assert f"--config={config}:./tiny" in capsys.readouterr().err


def test_the_size_of_a_small_text_is_printed(tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("a line\n" * 300)
    valid("own_text", str(path))
    assert f"own_text:tiny for 2.1 kB of text in {path}" in capsys.readouterr().err


CAUSAL = pytest.mark.parametrize("name", ["gmlp", "amlp", "transformer"])


@CAUSAL
def test_causal_models_have_equal_sizes(name):
    """To 2 %."""
    options = valid("causal_text", name)
    assert options.task == "causal_lm"
    assert options.model.causal
    assert options.data.train == "embedded"
    assert options.model.vocab_size == 8000
    assert params_without_vocabulary(options) == pytest.approx(0.895e6, rel=0.02)
    block = blocks.find(options.model.block)
    assert options.model.scale_embeddings == block.mixes_at_start


@CAUSAL
def test_causal_models_may_read_bytes(name):
    options = valid("causal_text", f"{name},scale=quickstart,tokenizer=bytes")
    assert options.model.vocab_size == 261
    assert options.model.length == 128
    assert options.data.tokenizer == "bytes"


@pytest.mark.parametrize("name", recipes.IMAGE_MODELS)
def test_image_configs_build_the_published_models(name):
    published_spec = sizes.PUBLISHED[name].spec
    expected = blocks.settings(published_spec) | {"dtype": "bfloat16"}
    for file in ("imagenet", "imagenet21k", "finetune_image"):
        options = valid(file, name)
        for key, value in expected.items():
            found = options.model[key]
            assert found == value, (file, key)


@pytest.mark.parametrize(
    ("name", "survival"), [("gmlp_ti", 1.0), ("gmlp_s", 0.95), ("gmlp_b", 0.8)]
)
def test_the_papers_imagenet_recipe(name, survival):
    """Appendix A.1's table, Table 1's survival probabilities, and 300 epochs of batches of 4096."""
    options = config_lib.from_file("configs/imagenet.py", name)
    assert options.batch_size == 4096
    assert options.steps == 93_835
    assert options.optimizer.warmup == 10_000
    assert options.model.survival == survival
    assert options.model.image_size == (224, 224)
    assert options.augment.auto == "autoaugment"
    assert options.augment.mixup == 0.8
    assert options.augment.cutmix == 1.0
    assert options.augment.switch == 0.5
    assert options.augment.erasing == 0
    assert options.augment.repeats == 1
    adamw = options.optimizer
    assert adamw.learning_rate == 1e-3
    assert adamw.weight_decay == 0.05
    assert adamw.clip == 1.0
    assert adamw.eps == 1e-6
    assert adamw.schedule == "cosine"
    assert adamw.label_smoothing == 0.1
    assert adamw.ema == 0


def test_deits_imagenet_recipe():
    deit = config_lib.from_file("configs/imagenet.py", "deit_s,recipe=deit")
    assert deit.batch_size == 1024
    assert deit.steps == 375_341
    assert deit.augment.repeats == 3
    assert deit.optimizer.ema == 0.99996
    assert deit.model.survival == 0.9
    assert deit.model.survival_schedule == "linear"


@pytest.mark.slow
@pytest.mark.parametrize("file", ["cifar10", "tiny_imagenet"])
def test_small_image_models_have_equal_sizes(file):
    for name in recipes.SMALL_IMAGE_MODELS:
        small = valid(file, name)
        small_size = encoder_size(small)
        assert small_size == pytest.approx(0.525e6, rel=0.02), name
        gpu = valid(file, f"{name},scale=gpu")
        gpu_size = encoder_size(gpu)
        assert gpu_size == pytest.approx(9e6, rel=0.01), name
        layers = 2 * small.model.layers
        assert gpu.model.layers == layers
        assert gpu.model.d_model == 288


ARENA_FILES = ("lra_listops", "lra_text", "lra_retrieval", "lra_image", "lra_pathfinder")


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("file", ARENA_FILES)
def test_models_of_long_range_arena(file, scale):
    small_steps = 1000 if file == "lra_listops" else 200
    for name in long_range.MODELS:
        options = valid(file, f"{name},scale={scale}")
        assert options.data.train == ""
        if scale == "small":
            assert options.steps == small_steps


@pytest.mark.parametrize("file", ARENA_FILES)
def test_models_of_long_range_arena_are_documented(file):
    default = config_lib.from_file(f"configs/{file}.py")
    documentation = runpy.run_path(f"configs/{file}.py")["__doc__"]
    assert default.model.block == "gmlp"
    for name in long_range.MODELS:
        assert name in documentation


# Settings of Long Range Arena's Transformers, from its paper and the newest configs of its
# repository.
ARENA_MODELS = {
    "listops": {"layers": 4, "d_model": 512, "heads": 8, "d_ffn": 1024, "d_qkv": 0},
    "text": {"layers": 4, "d_model": 256, "heads": 4, "d_ffn": 1024, "d_qkv": 0},
    "retrieval": {"layers": 4, "d_model": 128, "heads": 4, "d_ffn": 512, "d_qkv": 0},
    "image": {"layers": 1, "d_model": 128, "heads": 8, "d_ffn": 128, "d_qkv": 64},
    "pathfinder": {"layers": 1, "d_model": 128, "heads": 4, "d_ffn": 128, "d_qkv": 64},
}
ARENA_BATCHES_AND_STEPS = {
    "listops": (32, 5000),
    "text": (32, 20_000),
    "retrieval": (32, 5000),
    "image": (256, 35_000),
    "pathfinder": (512, 62_400),
}
ARENA_WARMUPS = {
    "listops": 1000,
    "text": 8000,
    "retrieval": 8000,
    "image": 175,
    "pathfinder": 312,
}
ARENA = pytest.mark.parametrize("name", ARENA_MODELS)


@ARENA
def test_sizes_of_long_range_arena(name):
    options = config_lib.from_file(f"configs/lra_{name}.py", "transformer")
    for key, value in ARENA_MODELS[name].items():
        assert options.model[key] == value, key
    assert not options.model.attention_bias
    pool = "mean" if name == "pathfinder" else "cls"
    assert options.model.pool == pool
    batch_size, steps = ARENA_BATCHES_AND_STEPS[name]
    assert options.batch_size == batch_size
    assert options.steps == steps


@ARENA
def test_optimizers_of_long_range_arena(name):
    adamw = config_lib.from_file(f"configs/lra_{name}.py", "transformer").optimizer
    warmup = ARENA_WARMUPS[name]
    assert adamw.warmup == warmup
    assert adamw.b2 == 0.98
    assert adamw.eps == 1e-9
    assert adamw.clip == 0
    assert adamw.decay_all
    image_rates = {"image": 5e-4, "pathfinder": 1e-3}
    if name in image_rates:
        assert adamw.learning_rate == image_rates[name]
        assert adamw.weight_decay == 0
        assert adamw.schedule == "cosine"
    else:
        assert adamw.learning_rate == pytest.approx(0.05 / warmup**0.5)
        assert adamw.weight_decay == 0.1
        assert adamw.schedule == "rsqrt"


@pytest.mark.parametrize(("name", "dropout"), [("image", 0.3), ("pathfinder", 0.2)])
def test_inputs_of_long_range_arenas_images(name, dropout):
    options = config_lib.from_file(f"configs/lra_{name}.py", "transformer")
    assert options.model.stem == "table"
    assert options.model.dropout == dropout


@pytest.mark.parametrize(
    ("name", "tokenizer"), [("listops", "listops"), ("text", "bytes"), ("retrieval", "bytes")]
)
def test_inputs_of_long_range_arenas_texts(name, tokenizer):
    options = config_lib.from_file(f"configs/lra_{name}.py", "transformer")
    assert options.data.tokenizer == tokenizer


def test_lengths_of_byte_level_text():
    for length in runpy.run_path("configs/lra_text.py")["LENGTHS"]:
        for scale in ("paper", "small"):
            options = valid("lra_text", f"mixer,length={length},scale={scale}")
            assert options.model.length == int(length)
            assert options.batch_size * int(length) <= 32 * 4096
