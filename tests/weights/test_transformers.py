"""Masked language models of the package transformers have the same logits here."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import traverse_util
from numpy.testing import assert_allclose, assert_array_equal

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

# Options of tiny models in transformers.
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
        trained = Tokenizer.train(list(file), 300)
        trained.save(path)
    return str(path)


# Compared with the package


NAMES = {"bert": "Bert", "fnet": "FNet"}


@BOTH
@pytest.mark.parametrize("tied", [True, False])
def test_saved_folders_have_the_logits_of_transformers(transformers, tmp_path, family, tied):
    """save_pretrained omits tied weights. Hidden states agree within 1e-5, logits within 1e-4."""
    import torch

    torch.manual_seed(0)
    name = NAMES[family]
    make_options = getattr(transformers, f"{name}Config")
    make_model = getattr(transformers, f"{name}ForMaskedLM")
    options = make_options(**TINY, **HEADS[family], tie_word_embeddings=tied)
    model = make_model(options).eval()
    if not tied:
        decoder_bias = model.cls.predictions.decoder.bias
        torch.nn.init.normal_(decoder_bias)
    model.save_pretrained(tmp_path)
    state = weight_files.read(str(tmp_path / "model.safetensors"))
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["model_type"] == family
    config = config_for(family, state, described)
    assert config.model.pooler == (family == "fnet")
    params = converted(family, state, config)
    assert ("output_embedding" in params) is not tied
    tokens = np.arange(24).reshape(2, 12)
    segments_of_text = [0] * 6 + [1] * 6
    segments = np.array([segments_of_text] * 2)
    token_tensor = torch.tensor(tokens)
    segment_tensor = torch.tensor(segments)
    inputs = {"input_ids": token_tensor, "token_type_ids": segment_tensor}
    with torch.inference_mode():
        theirs = model(**inputs, output_hidden_states=True)
    module = MaskedLanguageModeling(config).bind(params)
    hidden = module.hidden(tokens, segments=segments)
    logits = module.logits(hidden)
    their_hidden = theirs.hidden_states[-1].numpy()
    assert_allclose(hidden, their_hidden, atol=1e-5)
    assert_allclose(logits, theirs.logits.numpy(), atol=1e-4)


def head_of(width, vocab_size):
    """A head of BERT for another width and vocabulary."""
    sizes = {8: width, 320: vocab_size}
    state, _ = of_transformers("bert")
    head = {}
    for name, array in state.items():
        if name.startswith("cls."):
            shape = [sizes[size] for size in array.shape]
            head[name] = np.resize(array, shape)
    return head


def test_padding_and_the_pooler_are_those_of_transformers(transformers):
    """As in a classifier, [PAD] is not attended to, and the pooled state is BertModel's."""
    import torch

    torch.manual_seed(0)
    options = transformers.BertConfig(**TINY, **HEADS["bert"])
    model = transformers.BertModel(options).eval()
    state = head_of(16, 50)
    for name, tensor in model.state_dict().items():
        state[f"bert.{name}"] = tensor.numpy()
    described = {**DESCRIBED["bert"], **HEADS["bert"], "layer_norm_eps": 1e-12}
    config = config_for("bert", state, described)
    params = converted("bert", state, config)
    positions = np.arange(12)
    tokens = positions[None]
    is_text = (positions < 7)[None]
    with torch.inference_mode():
        token_tensor = torch.tensor(tokens)
        theirs = model(token_tensor, attention_mask=torch.tensor(is_text))
    module = MaskedLanguageModeling(config).bind(params)
    hidden = module.hidden(tokens, padding_mask=is_text)
    their_hidden = theirs.last_hidden_state.numpy()
    text_hidden = hidden[:, :7]
    their_text_hidden = their_hidden[:, :7]
    assert_allclose(text_hidden, their_text_hidden, atol=1e-5)
    first_hidden = hidden[:, 0]
    pooled = np.tanh(module.pooler(first_hidden))
    assert_allclose(pooled, theirs.pooler_output.numpy(), atol=1e-5)


# Sizes and names


ACTIVATIONS = {"bert": "gelu", "fnet": "gelu_tanh"}


@BOTH
@pytest.mark.parametrize("has_heads", [False, True])
def test_sizes_come_from_the_shapes(family, has_heads):
    """With heads, the bias of the logits has the name of its layer."""
    state, params = of_transformers(family)
    if has_heads:
        state = with_heads(family, state)
        del state[states.BIAS]
    described = DESCRIBED[family]
    config = config_for(family, state, described)
    model = config.model
    for key, size in SIZES.items():
        assert model[key] == size, key
    assert model.token_types == 2
    assert model.norm == "post"
    assert model.pooler
    assert model.activation == ACTIVATIONS[family]
    assert model.norm_eps == described.get("layer_norm_eps", 1e-12)
    found = converted(family, state, config)
    jax.tree.map(assert_array_equal, found, params)


def test_old_names_of_norms_are_read(spiece, tmp_path):
    """google-bert/bert-base-uncased has them."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    state, params = of_transformers("fnet")
    old = {}
    for name, array in state.items():
        name = name.replace("Norm.weight", "Norm.gamma")
        name = name.replace("Norm.bias", "Norm.beta")
        old[name] = torch.tensor(array)
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "pytorch_model.bin")
    content = json.dumps(DESCRIBED["fnet"])
    (tmp_path / "config.json").write_text(content)
    shutil.copy(spiece, tmp_path)
    model = pretrained.load(tmp_path)
    jax.tree.map(assert_array_equal, model.params, params)


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_folders_or_their_weights_may_be_named(spiece, tmp_path, name):
    state, params = of_transformers()
    states.write_transformers(tmp_path, "fnet", with_heads("fnet", state))
    shutil.copy(spiece, tmp_path)
    model = pretrained.load(tmp_path / name)
    jax.tree.map(assert_array_equal, model.params, params)
    assert model.tokenizer.vocab_size == 300


# Errors


def test_encoders_without_a_head_are_refused():
    state, _ = of_transformers("bert")
    bare = {}
    for name, array in state.items():
        if name.startswith("bert."):
            bare[name] = array
    config = config_for("bert", bare, DESCRIBED["bert"])
    message = raised(RunError, converted, "bert", bare, config)
    assert "5 missing (cls.predictions" in message


def test_weights_of_another_family_are_refused():
    message = raised(RunError, config_for, "fnet", {"bert.x": np.ones(3)}, {})
    assert "FILE" in message
    assert "bert.x" in message
    assert "nothing" in raised(RunError, config_for, "fnet", {}, {})


TABLES = pytest.mark.parametrize("table", ["word", "position", "token_type"])


@TABLES
def test_tables_of_another_shape_are_refused(table):
    name = f"fnet.embeddings.{table}_embeddings.weight"
    state, _ = of_transformers("fnet")
    state[name] = np.ones(3)
    config = config_for("fnet", state, {})
    message = raised(RunError, converted, "fnet", state, config)
    assert f"{name} [3], not" in message


@TABLES
def test_missing_tables_are_refused(table):
    name = f"fnet.embeddings.{table}_embeddings.weight"
    state, _ = of_transformers("fnet")
    state = with_heads("fnet", state)
    del state[name]
    config = config_for("fnet", state, {})
    message = raised(RunError, converted, "fnet", state, config)
    assert f"missing ({name})" in message


DECODER = "cls.predictions.decoder.weight"


def test_untied_weights_need_their_key():
    state, _ = of_transformers("fnet")
    config = config_for("fnet", state, {})
    embedding = state[words("fnet")]
    state[DECODER] = embedding + 1
    assert "tie_word_embeddings" in raised(RunError, converted, "fnet", state, config)
    untied = config_for("fnet", state, {"tie_word_embeddings": False})
    params = converted("fnet", state, untied)
    assert_array_equal(params["output_embedding"], state[DECODER])


def test_missing_untied_weights_are_refused():
    state, _ = of_transformers("fnet")
    with_decoder = {**state, DECODER: state[words("fnet")]}
    untied = config_for("fnet", with_decoder, {"tie_word_embeddings": False})
    message = raised(RunError, converted, "fnet", state, untied)
    assert f"1 missing ({DECODER})" in message


def test_missing_tensors_of_a_layer_are_refused():
    state, _ = of_transformers("fnet")
    config = config_for("fnet", state, {})
    name = "fnet.encoder.layer.1.output.dense.bias"
    del state[name]
    message = raised(RunError, converted, "fnet", state, config)
    assert f"1 missing ({name})" in message


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
def test_unsupported_configs_are_refused(change, words):
    state, _ = of_transformers("bert")
    described = {**DESCRIBED["bert"], **change}
    errors = (RunError, ConfigError)
    message = raised(errors, config_for, "bert", state, described)
    assert words in message


def test_configs_without_a_number_of_heads_are_refused():
    state, _ = of_transformers("bert")
    assert "num_attention_heads" in raised(RunError, config_for, "bert", state, {})


def test_missing_and_other_tokenizers_are_refused(spiece, tmp_path):
    state, _ = of_transformers()
    for name in (words("fnet"), states.BIAS):
        array = state[name]
        state[name] = array[:290]
    states.write_transformers(tmp_path, "fnet", state)
    assert str(tmp_path) in raised(DataError, pretrained.load, tmp_path)
    shutil.copy(spiece, tmp_path)
    for source in (tmp_path, tmp_path / "model.safetensors"):
        message = raised(RunError, pretrained.load, source)
        assert "300 pieces" in message
        assert "290 rows" in message


# Commands and runs


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder of Hugging Face with a random tiny BERT, its config.json and a WordPiece vocabulary,
    and the folder that `gmlp export` makes from it."""
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


def test_exported_berts_fill_masks(bert):
    _, exported = bert
    model = gmlp_flax.load(exported)
    _, params = of_transformers("bert")
    jax.tree.map(assert_array_equal, model.params, params)
    ((ranked,),) = model.predict(["the [MASK] of"], top=3)
    assert len(ranked) == 3
    upper_case = model.tokenizer.encode("THE")
    assert upper_case == model.tokenizer.encode("the")


@pytest.mark.slow
def test_berts_of_the_hub_come_with_their_tokenizer(bert, tmp_path):
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


def write_sentences(path, end: str) -> None:
    """Writes a table of SST-2 with a sentence for each word."""
    lines = ["sentence\tlabel"]
    for number, word in enumerate(tiny.WORDS):
        label = number % 2
        lines.append(f"the {word} {end}\t{label}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_finetuning_starts_from_bert(bert, tmp_path):
    """All parameters start from BERT's values, so that two steps change them little. Starting from
    the folder of transformers and from its export gives the same."""
    folder, exported = bert
    write_sentences(tmp_path / "train.tsv", "of")
    write_sentences(tmp_path / "dev.tsv", "in")
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
    starts = (("folder", folder), ("exported", exported))
    for name, start in starts:
        options.init_from = str(start)
        run = str(tmp_path / name)
        loop.train(options, run)
        tuned.append(pretrained.load(tmp_path / name))
    first, second = tuned
    jax.tree.map(assert_array_equal, first.params, second.params)
    model = first.config.model
    assert model.block == "transformer"
    assert model.norm == "post"
    assert model.pooler
    _, params = of_transformers("bert")
    old = traverse_util.flatten_dict(params, sep="/")
    new = traverse_util.flatten_dict(first.params, sep="/")
    for name in ("segments/table", "pooler/kernel", "encoder/blocks/attention/proj_in/kernel"):
        new_leaf = np.asarray(new[name])
        differences = np.abs(new_leaf - old[name])
        assert 0 < differences.max() < 0.02, name


@pytest.mark.slow
def test_commands_may_start_from_a_folder(bert, tmp_path):
    """`gmlp plan` and `gmlp train` use its sizes."""
    folder, _ = bert
    table = tmp_path / "own.csv"
    run = tmp_path / "run"
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
    table.write_text("\n".join(lines) + "\n")
    done = preloaded.gmlp(
        "train",
        *flags,
        f"--config.data.train={table}",
        "--config.data.heldout_share=0.25",
        "--config.steps=1",
        "--config.batch_size=4",
        f"--workdir={run}",
    )
    assert done.returncode == 0, done.stderr
    leaves = jax.tree.leaves(pretrained.load(run).params)
    assert sum(leaf.size for leaf in leaves) == planned


@pytest.mark.parametrize("command", ["plan", "train", "export", "predict", "evaluate"])
def test_commands_refuse_folders_without_weights(tmp_path, command):
    """The folder has a config.json and no weights."""
    content = json.dumps(DESCRIBED["bert"])
    (tmp_path / "config.json").write_text(content)
    start = ["--config=finetune_glue:own", f"--config.init_from={tmp_path}"]
    flags = {
        "plan": [*start, "--topology=gpu:l4x1"],
        "train": [*start, f"--workdir={tmp_path / 'run'}"],
        "export": [f"--model={tmp_path}", f"--out={tmp_path / 'out'}"],
        "predict": [f"--workdir={tmp_path}"],
        "evaluate": [f"--workdir={tmp_path}"],
    }
    command_flags = flags[command]
    message = preloaded.refused(command, *command_flags)
    assert f"{tmp_path} has no model.safetensors and no pytorch_model.bin" in message
    file_names = []
    for path in tmp_path.iterdir():
        file_names.append(path.name)
    assert file_names == ["config.json"]
