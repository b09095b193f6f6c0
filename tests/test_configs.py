"""Every config file with every argument that it documents: it validates, and its model is the
published one."""

import io
import runpy
from pathlib import Path

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

ABLATION, BERT = (
    runpy.run_path(f"configs/{name}.py")["MODELS"] for name in ("c4_ablation", "c4_bert")
)
SMALL = tuple(runpy.run_path("configs/c4_ablation.py")["SMALL"])
COMPARED = TABLES["alternatives"].rows
LENGTHS = runpy.run_path("configs/long_text.py")["LENGTHS"]
TEXT_PARAMS_BESIDE_VOCABULARY = (0.39e6, 0.42e6)
THIN_PARAMS_BESIDE_VOCABULARY = (0.39e6, 0.48e6)
# layers, of which rows of Table 4 and Figure 8 have more or fewer
ONCE = {"gmlp_": 4, "transformer_": 2, "amlp_": 3}


def valid(path: str, argument: str = ""):
    options = config_lib.from_file(f"configs/{path}.py", argument)
    config_lib.validate(options)
    return options


def param_count(options) -> int:
    return parameters.count(tasks.find(options.task)(options).shapes())


@pytest.mark.parametrize(
    ("path", "name"), [("c4_ablation", n) for n in ABLATION] + [("c4_bert", n) for n in BERT]
)
def test_the_papers_models(path, name):
    options = valid(path, name)
    published = sizes.PUBLISHED[name]
    assert param_count(options) == sizes.param_count(published)
    wanted = (128, 2048, 125_000, 20) if path == "c4_ablation" else (512, 256, 1_000_000, 77)
    assert (
        options.model.length,
        options.batch_size,
        options.steps,
        options.masking.max_predictions,
    ) == wanted
    assert options.optimizer.clip == 0
    assert options.optimizer.schedule == "linear"
    assert options.model.dtype == "bfloat16"


def encoder_size(options) -> int:
    """Parameters of the encoder: without embeddings, positions, stem and head."""
    return parameters.count(tasks.find(options.task)(options).shapes()["encoder"])


@pytest.mark.parametrize(("scale", "size"), [("small", 0.4e6), ("gpu", 3.16e6)])
def test_the_alternatives_have_the_same_number_of_parameters(scale, size):
    """Up to 2 %, at about the same depth: two branches per layer, or four layers of gMLP's one;
    aMLP is shallower."""
    depth = 1 if scale == "small" else 2
    for name in COMPARED:
        options = valid("c4_ablation", f"{name},scale={scale}")
        assert abs(encoder_size(options) / size - 1) < 0.02, name
        assert options.model.layers == depth * {"sgu": 4, "depthwise": 4, "amlp_36": 3}.get(name, 2)
        assert (options.steps, options.batch_size) == (
            (900, 16) if scale == "small" else (10_000, 256)
        )


@pytest.mark.parametrize("name", SMALL)
def test_small_rows_are_of_one_size(name):
    options = valid("c4_ablation", f"{name},scale=small")
    embeddings = options.model.vocab_size * (options.model.d_model + 1)
    low, high = (
        THIN_PARAMS_BESIDE_VOCABULARY if name.startswith("thin_") else TEXT_PARAMS_BESIDE_VOCABULARY
    )
    depth = next(
        (options.model.layers / once for series, once in ONCE.items() if name.startswith(series)), 1
    )
    assert low * depth < param_count(options) - embeddings < high * depth
    wide = valid("c4_ablation", f"{name},scale=gpu")
    assert wide.model.d_model == 2 * options.model.d_model
    assert wide.model.layers == 2 * options.model.layers
    assert param_count(wide)


@pytest.mark.parametrize("scale", ["paper", "small", "gpu"])
def test_more_data_is_more_steps_and_nothing_else(scale):
    once, more = (valid("c4_ablation", f"sgu,scale={scale}{more}") for more in ("", ",data=4"))
    changed = config_lib.differences(once, more)
    assert changed.keys() == {"steps", "eval.every", "checkpoint.every"}
    for before, after in changed.values():
        assert 4 * before == after


@pytest.mark.parametrize("scale", ["small", "gpu"])
def test_the_full_settings_models_in_small_keep_their_order(scale):
    """Parameters beside the vocabulary, over those of BERT-base: within a third of the paper's
    ratios (Table 5)."""
    of = {name: valid("c4_bert", f"{name},scale={scale}") for name in BERT}
    ours = {}
    papers = {}
    for name, options in of.items():
        ours[name] = param_count(options) - options.model.vocab_size * (options.model.d_model + 1)
        published = sizes.PUBLISHED[name]
        papers[name] = sizes.param_count(published) - sizes.VOCAB_SIZE * (
            published.spec.d_model + 1
        )
    for name in BERT:
        ratio = ours[name] / ours["bert_base"], papers[name] / papers["bert_base"]
        assert 2 / 3 < ratio[0] / ratio[1] < 3 / 2, (name, ratio)
    small = of["gmlp_base"]
    tokens = small.batch_size * small.model.length
    assert small.model.length == 256
    assert tokens == (2048 if scale == "small" else 32_768)
    assert small.masking.max_predictions == 39  # 15 %


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scale", ["base", "small"])
def test_long_inputs(length, scale):
    options = valid("long_text", f"{length},scale={scale}")
    assert options.model.length == int(length)
    assert options.model.toeplitz == "auto"
    taps = tasks.find(options.task)(options).shapes()["encoder"]["blocks"]["gate"]["spatial"][
        "taps"
    ]
    assert taps.shape == (options.model.layers, 2 * int(length) - 1)


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
        ("own_text", "no/such.txt", "a file or a folder of text"),
        ("own_text", "amlp_base,scale=small", "has 'scale=small': expected nothing more"),
        ("own_images", "smal", "did you mean 'small'"),
        ("own_images", "no/such", "a folder or a file of images"),
        ("long_text", "4097", "did you mean '4096'"),
        ("lra_image", "vit", "expected one of gmlp, amlp, "),
        ("lra_text", "gmlp,length=1000", "length=1024|2048|3072|4096|256"),
    ],
)
def test_a_wrong_argument_says_what_is_right(path, arg, message):
    assert message in raised(ConfigError, config_lib.from_file, f"configs/{path}.py", arg)


@pytest.mark.parametrize(
    ("arg", "layers"), [("", 6), ("small", 6), ("tiny", 4), ("base", 48), ("amlp_base", 36)]
)
def test_own_text(arg, layers):
    options = valid("own_text", arg)
    assert options.model.layers == layers
    assert options.data.train == ""
    assert bool(options.model.d_attn) == ("amlp" in arg)


@pytest.mark.parametrize(
    ("name", "size", "layers"),
    [("a.txt", 9e6, 4), ("a.txt", 11e6, 6), ("a.jsonl.gz", 2e6, 4), ("a.jsonl.gz", 3e6, 6)],
)
def test_own_text_is_as_large_as_the_text_allows(tmp_path, capsys, name, size, layers):
    folder = tmp_path / "texts"
    folder.mkdir()
    with open(folder / name, "wb") as file:
        file.truncate(int(size))
    for path in (folder / name, folder):
        options = valid("own_text", str(path))
        assert options.model.layers == layers
        assert options.data.train == str(path)
        assert f"own_text:{'tiny' if layers == 4 else 'small'} for " in capsys.readouterr().err
    assert (options.model.vocab_size, options.steps) == (
        (2000, 500) if layers == 4 else (8000, 2000)
    )


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
            (folder / name / f"{number}.png").write_bytes(pixel.getvalue())


@pytest.mark.parametrize(
    ("count", "size", "layers", "steps"),
    [(4, "tiny", 4, 100), (60, "tiny", 4, 100), (600, "tiny", 4, 440), (6000, "small", 8, 2000)],
)
def test_own_images_suits_the_number_of_images(tmp_path, capsys, count, size, layers, steps):
    folder = tmp_path / "photos"
    write_images(folder, count)
    options = valid("own_images", str(folder))
    read = images.read(str(folder))[""]
    trained_on = len(read.hold_out("train", options.data.heldout_share))
    assert options.model.layers == layers
    assert options.steps == steps
    assert options.eval.every == options.checkpoint.every == steps // 4
    assert options.optimizer.warmup == steps // 10
    assert options.data.train == str(folder)
    line = capsys.readouterr().err
    assert f"own_images:{size}, {steps:,} steps for {trained_on:,} images" in line
    assert f"{steps * 64 / trained_on:,.0f} passes over them" in line


def test_own_images_counts_the_split_to_train_on(tmp_path, capsys):
    write_images(tmp_path / "photos" / "train", 6)
    write_images(tmp_path / "photos" / "test", 4)
    valid("own_images", str(tmp_path / "photos"))
    assert "for 6 images" in capsys.readouterr().err


def test_keys_that_the_user_sets_win_over_the_number_of_images(tmp_path):
    write_images(tmp_path / "photos", 4)
    suited = config_lib.open_config(f"configs/own_images.py:{tmp_path / 'photos'}")
    words = ["gmlp", "--config.steps=7", "--config.model.layers=3", "--config.optimizer.warmup=2"]
    options, _ = config_lib.apply_overrides(suited, words)
    assert (options.steps, options.model.layers, options.optimizer.warmup) == (7, 3, 2)


def test_own_images_that_cannot_be_counted_are_left_to_the_run(tmp_path, capsys):
    """Another key may solve it, here config.data.split=all."""
    write_images(tmp_path / "photos" / "train", 4)
    write_images(tmp_path / "photos" / "cats", 4)
    options = valid("own_images", str(tmp_path / "photos"))
    assert options.model.layers == 8
    line = capsys.readouterr().err
    assert line == f"own_images:small, because the images in {tmp_path}/photos were not counted\n"


@pytest.mark.parametrize("config", ["own_images", "own_text"])
def test_a_folder_that_is_named_as_a_size_is_noted(config, tmp_path, monkeypatch, capsys):
    valid(config, "tiny")
    assert capsys.readouterr().err == ""
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert config_lib.open_config(f"{config}:tiny").data.train in ("", None)
    assert f"--config={config}:./tiny" in capsys.readouterr().err


def test_a_small_text_has_a_size(tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("a line\n" * 300)
    valid("own_text", str(path))
    assert f"own_text:tiny for 2.1 kB of text in {path}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gmlp", "amlp", "transformer"])
def test_causal_text(name):
    """Models of one size, to 2 %; and the same on bytes."""
    options = valid("causal_text", name)
    assert options.task == "causal_lm"
    assert options.model.causal
    assert options.data.train == "embedded"
    assert param_count(options) - 8000 * 129 == pytest.approx(0.895e6, rel=0.02)
    assert options.model.scale_embeddings == blocks.find(options.model.block).mixes_at_start
    in_bytes = valid("causal_text", f"{name},scale=quickstart,tokenizer=bytes")
    assert in_bytes.model.vocab_size == 261
    assert in_bytes.model.length == 128
    assert in_bytes.data.tokenizer == "bytes"


@pytest.mark.parametrize("name", recipes.IMAGE_MODELS)
def test_image_configs_build_the_published_models(name):
    spec = blocks.settings(sizes.PUBLISHED[name].spec)
    for file in ("imagenet", "imagenet21k", "finetune_image"):
        options = valid(file, name)
        got = {key: options.model[key] for key in spec}
        assert got == spec | {"dtype": "bfloat16"}


def test_the_papers_imagenet_recipe():
    """FACTS: appendix A.1's table, Table 1's survival probabilities, 300 epochs of 4096."""
    for name, survival in (("gmlp_ti", 1.0), ("gmlp_s", 0.95), ("gmlp_b", 0.8)):
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
    deit = config_lib.from_file("configs/imagenet.py", "deit_s,recipe=deit")
    assert deit.batch_size == 1024
    assert deit.steps == 375_341
    assert deit.augment.repeats == 3
    assert deit.optimizer.ema == 0.99996
    assert deit.model.survival == 0.9
    assert deit.model.survival_schedule == "linear"


@pytest.mark.parametrize("file", ["cifar10", "tiny_imagenet"])
def test_small_image_models_are_of_one_size(file):
    for name in recipes.SMALL_IMAGE_MODELS:
        options = valid(file, name)
        assert abs(encoder_size(options) / 0.525e6 - 1) < 0.02, name
        wide = valid(file, f"{name},scale=gpu")
        assert abs(encoder_size(wide) / 9e6 - 1) < 0.01, name
        assert wide.model.layers == 2 * options.model.layers
        assert wide.model.d_model == 288


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize(
    "file", ["lra_listops", "lra_text", "lra_retrieval", "lra_image", "lra_pathfinder"]
)
def test_long_range_arenas_models(file, scale):
    for name in long_range.MODELS:
        options = valid(file, f"{name},scale={scale}")
        assert options.data.train == ""
        assert scale == "paper" or options.steps == {"lra_listops": 1000}.get(file, 200)
    assert config_lib.from_file(f"configs/{file}.py").model.block == "gmlp"
    for arg in long_range.MODELS:
        assert arg in runpy.run_path(f"configs/{file}.py")["__doc__"]


# Task -> layers, d_model, heads, d_ffn; batch, steps, warmup; learning rate, weight decay,
# schedule.
ARENA = {
    "listops": ((4, 512, 8, 1024), (32, 5000, 1000), (0.05 / 1000**0.5, 0.1, "rsqrt")),
    "text": ((4, 256, 4, 1024), (32, 20_000, 8000), (0.05 / 8000**0.5, 0.1, "rsqrt")),
    "retrieval": ((4, 128, 4, 512), (32, 5000, 8000), (0.05 / 8000**0.5, 0.1, "rsqrt")),
    "image": ((1, 128, 8, 128), (256, 35_000, 175), (5e-4, 0, "cosine")),
    "pathfinder": ((1, 128, 4, 128), (512, 62_400, 312), (1e-3, 0, "cosine")),
}


@pytest.mark.parametrize("name", ARENA)
def test_long_range_arenas_settings(name):
    """FACTS: D.5, and the newest configs of its repository."""
    options = config_lib.from_file(f"configs/lra_{name}.py", "transformer")
    sizes_of, length, descent = ARENA[name]
    got = tuple(options.model[key] for key in ("layers", "d_model", "heads", "d_ffn"))
    assert got == sizes_of
    adamw = options.optimizer
    assert (options.batch_size, options.steps, adamw.warmup) == length
    assert adamw.b2 == 0.98
    assert adamw.eps == 1e-9
    assert adamw.clip == 0
    assert adamw.learning_rate == pytest.approx(descent[0])
    assert (adamw.weight_decay, adamw.schedule) == descent[1:]
    assert adamw.decay_all
    assert options.model.d_qkv == (64 if name in ("image", "pathfinder") else 0)
    assert not options.model.attention_bias
    assert options.model.pool == ("mean" if name == "pathfinder" else "cls")
    if name in ("image", "pathfinder"):
        assert options.model.stem == "table"
        assert options.model.dropout == {"image": 0.3, "pathfinder": 0.2}[name]
    else:
        assert (
            options.data.tokenizer
            == {"listops": "listops", "text": "bytes", "retrieval": "bytes"}[name]
        )


def test_lengths_of_byte_level_text():
    for length in runpy.run_path("configs/lra_text.py")["LENGTHS"]:
        for scale in ("paper", "small"):
            options = valid("lra_text", f"mixer,length={length},scale={scale}")
            assert options.model.length == int(length)
            assert options.batch_size * int(length) <= 32 * 4096
