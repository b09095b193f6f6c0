"""Masked language models as the package transformers saves them: read by name, and the same
logits."""

import json
import shutil

import jax
import numpy as np
import pytest

import gmlp_flax
from gmlp_flax import config as config_lib
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import weight_files
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loop, pretrained
from gmlp_flax.weights import transformers as ours
from tests import hub_server, preloaded
from tests.failures import raised
from tests.training import tiny
from tests.weights import states
from tests.weights.states import DESCRIBED, SIZES, of_transformers, with_heads, words

# Of models that transformers makes.
TINY = dict(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=3,
    intermediate_size=24,
    max_position_embeddings=12,
)
HEADS = {"bert": {"num_attention_heads": 4}, "fnet": {}}
BOTH = pytest.mark.parametrize("family", ["bert", "fnet"])


def shapes_of(state):
    return {name: array.shape for name, array in state.items()}


def config_for(family, state, described):
    return ours.config_for(family, shapes_of(state), described, "FILE")


def converted(family, state, config):
    return ours.from_transformers(family, state, config, "FILE")


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    """A vocabulary of 300 pieces."""
    path = tmp_path_factory.mktemp("tokenizer") / "spiece.model"
    corpus = tiny.write_corpus(path.parent / "corpus.jsonl")
    with open(corpus) as file:
        Tokenizer.train(list(file), 300).save(path)
    return str(path)


# Beside the package.


@BOTH
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_folder_is_read_by_name(transformers, tmp_path, family, tied):
    """As save_pretrained writes it, which leaves out what is tied: hidden states within 1e-5,
    logits within 1e-4."""
    import torch

    torch.manual_seed(0)
    name = {"bert": "Bert", "fnet": "FNet"}[family]
    make_options = getattr(transformers, f"{name}Config")
    options = make_options(**TINY, **HEADS[family], tie_word_embeddings=tied)
    model = getattr(transformers, f"{name}ForMaskedLM")(options).eval()
    if not tied:
        torch.nn.init.normal_(model.cls.predictions.decoder.bias)
    model.save_pretrained(tmp_path)
    state = weight_files.read(str(tmp_path / "model.safetensors"))
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["model_type"] == family
    config = config_for(family, state, described)
    assert config.model.pooler == (family == "fnet")
    params = converted(family, state, config)
    assert ("output_embedding" in params) is not tied
    tokens = np.arange(24).reshape(2, 12)
    types = np.arange(12) // 6 * np.ones((2, 1), int)
    with torch.inference_mode():
        inputs = {"input_ids": torch.tensor(tokens), "token_type_ids": torch.tensor(types)}
        theirs = model(**inputs, output_hidden_states=True)
    module = MaskedLanguageModeling(config).bind(params)
    hidden = module.hidden(tokens, segments=types)
    np.testing.assert_allclose(hidden, theirs.hidden_states[-1].numpy(), atol=1e-5)
    np.testing.assert_allclose(module.logits(hidden), theirs.logits.numpy(), atol=1e-4)


def head_of(width, vocab_size):
    """A head of BERT for another width and vocabulary."""
    sizes = {8: width, 320: vocab_size}
    state, _ = of_transformers("bert")
    head = {}
    for name, array in state.items():
        if name.startswith("cls."):
            head[name] = np.resize(array, [sizes[size] for size in array.shape])
    return head


def test_padding_and_the_pooler(transformers):
    """A classifier's whole path: [PAD] is not attended to, and the pooled state is BertModel's."""
    import torch

    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**TINY, **HEADS["bert"])).eval()
    state = head_of(16, 50)
    for name, tensor in model.state_dict().items():
        state[f"bert.{name}"] = tensor.numpy()
    described = {**DESCRIBED["bert"], **HEADS["bert"], "layer_norm_eps": 1e-12}
    config = config_for("bert", state, described)
    params = converted("bert", state, config)
    tokens = np.arange(12)[None]
    seen = (np.arange(12) < 7)[None]
    with torch.inference_mode():
        theirs = model(torch.tensor(tokens), attention_mask=torch.tensor(seen))
    module = MaskedLanguageModeling(config).bind(params)
    hidden = module.hidden(tokens, padding_mask=seen)
    expected = theirs.last_hidden_state[:, :7].numpy()
    np.testing.assert_allclose(hidden[:, :7], expected, atol=1e-5)
    pooled = np.tanh(module.pooler(hidden[:, 0]))
    np.testing.assert_allclose(pooled, theirs.pooler_output.numpy(), atol=1e-5)


# Sizes and names.


@BOTH
@pytest.mark.parametrize("heads", [False, True])
def test_sizes_come_from_the_shapes(family, heads):
    state, params = of_transformers(family)
    if heads:  # the bias has also the name of its layer, or that alone
        state = with_heads(family, state)
        del state[states.BIAS]
    config = config_for(family, state, DESCRIBED[family])
    assert {key: config.model[key] for key in SIZES} == SIZES
    assert (config.model.token_types, config.model.norm, config.model.pooler) == (2, "post", True)
    assert config.model.activation == {"bert": "gelu", "fnet": "gelu_tanh"}[family]
    assert config.model.norm_eps == DESCRIBED[family].get("layer_norm_eps", 1e-12)
    found = converted(family, state, config)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_the_first_names_of_norms(spiece, tmp_path):
    """As google-bert/bert-base-uncased has them."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    state, params = of_transformers("fnet")
    old = {}
    for name, array in state.items():
        old_name = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        old[old_name] = torch.tensor(array)
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(DESCRIBED["fnet"]))
    shutil.copy(spiece, tmp_path)
    found = pretrained.load(tmp_path).params
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.parametrize("hub", [True, False])
def test_a_folder_or_the_weights_in_it(spiece, tmp_path, hub):
    state, params = of_transformers()
    states.write_transformers(tmp_path, "fnet", with_heads("fnet", state))
    shutil.copy(spiece, tmp_path)
    source = tmp_path if hub else tmp_path / "model.safetensors"
    model = pretrained.load(source)
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    assert model.tokenizer.vocab_size == 300


# What is refused.


def test_an_encoder_alone():
    state, _ = of_transformers("bert")
    bare = {name: array for name, array in state.items() if name.startswith("bert.")}
    config = config_for("bert", bare, DESCRIBED["bert"])
    message = raised(RunError, converted, "bert", bare, config)
    assert "5 missing (cls.predictions" in message


def test_weights_of_another_family():
    message = raised(RunError, config_for, "fnet", {"bert.x": np.ones(3)}, {})
    assert "FILE" in message
    assert "bert.x" in message
    assert "nothing" in raised(RunError, config_for, "fnet", {}, {})


@pytest.mark.parametrize("table", ["word", "position", "token_type"])
def test_a_table_from_which_a_size_is_read(table):
    name = f"fnet.embeddings.{table}_embeddings.weight"
    state, _ = of_transformers("fnet")
    flat = {**state, name: np.ones(3)}
    message = raised(RunError, converted, "fnet", flat, config_for("fnet", flat, {}))
    assert f"{name} [3], not" in message
    without = with_heads("fnet", state)
    del without[name]
    message = raised(RunError, converted, "fnet", without, config_for("fnet", without, {}))
    assert f"missing ({name})" in message


def test_logits_that_are_tied_and_are_not():
    state, _ = of_transformers("fnet")
    config = config_for("fnet", state, {})
    other = {**state, "cls.predictions.decoder.weight": state[words("fnet")] + 1}
    assert "tie_word_embeddings" in raised(RunError, converted, "fnet", other, config)
    untied = config_for("fnet", other, {"tie_word_embeddings": False})
    params = converted("fnet", other, untied)
    np.testing.assert_array_equal(
        params["output_embedding"], other["cls.predictions.decoder.weight"]
    )
    message = raised(RunError, converted, "fnet", state, untied)
    assert "1 missing (cls.predictions.decoder.weight)" in message


def test_a_missing_tensor_of_a_layer():
    state, _ = of_transformers("fnet")
    config = config_for("fnet", state, {})
    name = "fnet.encoder.layer.1.output.dense.bias"
    del state[name]
    assert f"1 missing ({name})" in raised(RunError, converted, "fnet", state, config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "relu"}, "'hidden_act': 'relu'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "'is_decoder': True"),
        ({"model_type": "roberta"}, "roberta"),
        ({"tie_word_embeddings": "no"}, "'tie_word_embeddings': 'no'"),
        ({"num_attention_heads": "two"}, "num_attention_heads"),
        ({"num_attention_heads": 3}, "heads"),
        ({"num_attention_heads": None}, "num_attention_heads is None"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps"),
        ({"layer_norm_eps": -1}, "norm_eps"),
    ],
)
def test_a_config_of_another_model(change, words):
    state, _ = of_transformers("bert")
    described = {**DESCRIBED["bert"], **change}
    message = raised((RunError, ConfigError), config_for, "bert", state, described)
    assert words in message


def test_a_config_without_heads():
    state, _ = of_transformers("bert")
    assert "num_attention_heads" in raised(RunError, config_for, "bert", state, {})


def test_a_tokenizer_that_is_missing_or_does_not_fit(spiece, tmp_path):
    state, _ = of_transformers()
    for name in (words("fnet"), states.BIAS):
        state[name] = state[name][:290]
    states.write_transformers(tmp_path, "fnet", state)
    assert str(tmp_path) in raised(DataError, pretrained.load, tmp_path)
    shutil.copy(spiece, tmp_path)
    for source in (tmp_path, tmp_path / "model.safetensors"):
        message = raised(RunError, pretrained.load, source)
        assert "300 pieces" in message
        assert "290 rows" in message


# Commands and runs.


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder as of Hugging Face: a random tiny BERT, with its config.json and a WordPiece
    vocabulary; and an exported folder that the command has made of it."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    folder = tmp_path_factory.mktemp("bert") / "hub"
    state, _ = of_transformers("bert")
    states.write_transformers(folder, "bert", with_heads("bert", state))
    states.write_vocabulary(folder, tiny.WORDS)
    exported = folder.parent / "exported"
    done = preloaded.gmlp("export", f"--model={folder}", f"--out={exported}")
    assert done.returncode == 0, done.stderr
    assert "lower-cased" in done.stderr
    return folder, exported


def test_an_exported_bert(bert):
    _, exported = bert
    model = gmlp_flax.load(exported)
    _, params = of_transformers("bert")
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    [[ranked]] = model.predict(["the [MASK] of"], top=3)
    assert len(ranked) == 3
    assert model.tokenizer.encode("THE") == model.tokenizer.encode("the")


def test_a_bert_of_the_hub_comes_with_its_tokenizer(bert, tmp_path):
    pytest.importorskip(
        "huggingface_hub", reason="huggingface_hub is not installed (extra: weights)"
    )
    folder, _ = bert
    line = "the [MASK] of\n"
    with hub_server.serve() as hub:
        hub["me/bert"] = {file.name: file.read_bytes() for file in folder.iterdir()}
        settings = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_DISABLE_XET": "1",
        }
        done = preloaded.gmlp("predict", "--workdir=hf-hub:me/bert", input=line, **settings)
        here = preloaded.gmlp("predict", f"--workdir={folder}", input=line)
    assert done.returncode == 0, done.stderr
    assert done.stdout == here.stdout
    assert "[MASK] 1" in done.stdout


def test_glue_from_bert(bert, tmp_path):
    """Types, pooler and all begin at their own values, two steps before; from the folder of
    transformers and from what was exported of it alike."""
    folder, exported = bert
    for split, end in (("train", "of"), ("dev", "in")):
        lines = ["sentence\tlabel"]
        for number, word in enumerate(tiny.WORDS):
            lines.append(f"the {word} {end}\t{number % 2}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    options = config_lib.from_file("finetune_glue", "sst2,scale=small")
    options.update(steps=2, batch_size=4)
    options.model.update(length=12, pool="cls")
    options.optimizer.warmup = 1
    options.data.update(
        train=str(tmp_path / "train.tsv"),
        heldout=str(tmp_path / "dev.tsv"),
        cache=str(tmp_path / "cache"),
    )
    tuned = []
    for name, start in (("folder", folder), ("exported", exported)):
        options.init_from = str(start)
        loop.train(options, str(tmp_path / name))
        tuned.append(pretrained.load(tmp_path / name))
    first, second = tuned
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    assert first.config.model.block == "transformer"
    assert (first.config.model.norm, first.config.model.pooler) == ("post", True)
    _, params = of_transformers("bert")
    for path in (
        ("segments", "table"),
        ("pooler", "kernel"),
        ("encoder", "blocks", "attention", "proj_in", "kernel"),
    ):
        old = params
        new = first.params
        for key in path:
            old = old[key]
            new = new[key]
        moved = np.abs(np.asarray(new) - old).max()
        assert 0 < moved < 0.02, path


def test_commands_that_start_from_a_folder(bert, tmp_path):
    """`gmlp plan` and `gmlp train` alike have its sizes."""
    folder, _ = bert
    flags = [
        "--config=finetune_glue:own",
        f"--config.init_from={folder}",
        f"--config.model.length={SIZES['length']}",
    ]
    done = preloaded.gmlp("plan", *flags, "--topology=gpu:l4x1", "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)["params"]
    lines = ["text,label"]
    for number, word in enumerate(tiny.WORDS):
        lines.append(f"the {word} of,{number % 2}")
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    done = preloaded.gmlp(
        "train",
        *flags,
        f"--config.data.train={tmp_path / 'own.csv'}",
        "--config.data.heldout_share=0.25",
        "--config.steps=1",
        "--config.batch_size=4",
        f"--workdir={tmp_path / 'run'}",
    )
    assert done.returncode == 0, done.stderr
    params = pretrained.load(tmp_path / "run").params
    got = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert got == planned


@pytest.mark.parametrize("command", ["plan", "train", "export", "predict", "evaluate"])
def test_commands_refuse_a_folder_in_one_line(tmp_path, command):
    """Without weights beside its config.json."""
    (tmp_path / "config.json").write_text(json.dumps(DESCRIBED["bert"]))
    given = {
        "plan": ["--config=finetune_glue:own", "--topology=gpu:l4x1"],
        "train": ["--config=finetune_glue:own", f"--workdir={tmp_path / 'run'}"],
        "export": [f"--model={tmp_path}", f"--out={tmp_path / 'out'}"],
        "predict": [f"--workdir={tmp_path}"],
        "evaluate": [f"--workdir={tmp_path}"],
    }
    words = given[command]
    if command in ("plan", "train"):
        words.append(f"--config.init_from={tmp_path}")
    message = preloaded.refused(command, *words)
    assert f"{tmp_path} has no model.safetensors and no pytorch_model.bin" in message
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
