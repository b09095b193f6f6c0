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
from gmlp_flax.interop import transformers as ours
from gmlp_flax.io import weight_files
from gmlp_flax.paper import recipes
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loading, loop
from tests import hub_server, preloaded
from tests.data.finetuning.squad_files import colours
from tests.failures import raised
from tests.interop import states
from tests.interop.states import to_torch
from tests.training import tiny

SIZES = {"layers": 2, "d_model": 8, "d_ffn": 12, "length": 32, "vocab_size": 320}
TINY = dict(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=3,
    intermediate_size=24,
    max_position_embeddings=12,
)
HEADS = {"bert": {"num_attention_heads": 4}, "fnet": {}}
CONFIG = {
    "bert": {
        "model_type": "bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "num_attention_heads": 2,
    },
    "fnet": {"model_type": "fnet", "hidden_act": "gelu_new"},
}
BOTH = pytest.mark.parametrize("name", ours.FAMILIES)


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "spiece.model"
    corpus = tiny.write_corpus(path.parent / "corpus.jsonl")
    with open(corpus) as file:
        Tokenizer.train(list(file), 300).save(path)
    return str(path)


def random_weights(name="fnet"):
    """A state dict of a model with pooler, and our parameters with the same numbers."""
    config = recipes.language_model(f"{name}_base")
    config.model.update(SIZES | ours.FRAME, token_types=2, pooler=True)
    if "heads" in config.model:
        config.model.heads = 2
    numbers = np.random.default_rng(0)
    shapes = MaskedLanguageModeling.without_data(config).shapes()
    params = jax.tree.map(
        lambda leaf: (0.3 * numbers.normal(size=leaf.shape)).astype(np.float32), shapes
    )
    return to_torch(params, ours.FAMILIES[name]), params


def words(name):
    return f"{name}.embeddings.word_embeddings.weight"


def with_heads(name, state):
    """As BertForPreTraining and FNetForPreTraining are saved, by older versions of transformers."""
    return state | {
        f"{name}.embeddings.position_ids": np.arange(32)[None],
        "cls.seq_relationship.weight": np.ones((2, 8), np.float32),
        "cls.seq_relationship.bias": np.ones(2, np.float32),
        "cls.predictions.decoder.weight": state[words(name)],
        "cls.predictions.decoder.bias": state[ours.BIAS],
    }


@BOTH
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_folder_is_read_by_name(transformers, tmp_path, name, tied):
    """As save_pretrained writes it, which leaves out what is tied: hidden states within 1e-5,
    logits within 1e-4."""
    import torch

    torch.manual_seed(0)
    family = {"bert": "Bert", "fnet": "FNet"}[name]
    options = getattr(transformers, f"{family}Config")(
        **TINY, **HEADS[name], tie_word_embeddings=tied
    )
    model = getattr(transformers, f"{family}ForMaskedLM")(options).eval()
    if not tied:
        torch.nn.init.normal_(model.cls.predictions.decoder.bias)
    model.save_pretrained(tmp_path)
    state, described, where = weight_files.read_folder(str(tmp_path))
    config = ours.config_for(name, state, described, where)
    params = ours.from_transformers(name, state, config, where)
    tokens = np.arange(24).reshape(2, 12)
    types = np.arange(12) // 6 * np.ones((2, 1), int)
    with torch.inference_mode():
        inputs = {"input_ids": torch.tensor(tokens), "token_type_ids": torch.tensor(types)}
        theirs = model(**inputs, output_hidden_states=True)
    module = MaskedLanguageModeling.without_data(config).bind(params)
    assert ("output_embedding" in params) is not tied
    hidden = module.hidden(tokens, segments=types)
    np.testing.assert_allclose(hidden, theirs.hidden_states[-1].numpy(), atol=1e-5)
    np.testing.assert_allclose(module.logits(hidden), theirs.logits.numpy(), atol=1e-4)
    assert described["model_type"] == name and config.model.pooler == (name == "fnet")


def test_padding_and_the_pooler(transformers):
    """A classifier's whole path: [PAD] is not attended to, and the pooled state is BertModel's."""
    import torch

    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**TINY, **HEADS["bert"])).eval()
    encoder = {f"bert.{key}": tensor.numpy() for key, tensor in model.state_dict().items()}
    head = {
        key: value for key, value in random_weights("bert")[0].items() if key.startswith("cls.")
    }
    head = {
        key: np.resize(value, [{8: 16, 320: 50}[n] for n in value.shape])
        for key, value in head.items()
    }
    state = encoder | head
    config = ours.config_for(
        "bert", state, CONFIG["bert"] | HEADS["bert"] | {"layer_norm_eps": 1e-12}, "FILE"
    )
    params = ours.from_transformers("bert", state, config, "FILE")
    tokens, seen = np.arange(12)[None], (np.arange(12) < 7)[None]
    with torch.inference_mode():
        theirs = model(torch.tensor(tokens), attention_mask=torch.tensor(seen))
    module = MaskedLanguageModeling.without_data(config).bind(params)
    hidden = module.hidden(tokens, padding_mask=seen)
    np.testing.assert_allclose(hidden[:, :7], theirs.last_hidden_state[:, :7].numpy(), atol=1e-5)
    np.testing.assert_allclose(
        np.tanh(module.pooler(hidden[:, 0])), theirs.pooler_output.numpy(), atol=1e-5
    )


@BOTH
@pytest.mark.parametrize("heads", [False, True])
def test_sizes_come_from_the_shapes(name, heads):
    state, params = random_weights(name)
    if heads:  # the bias has also the name of its layer, or that alone
        state = with_heads(name, state)
        del state[ours.BIAS]
    config = ours.config_for(name, state, CONFIG[name], "FILE")
    assert {key: config.model[key] for key in SIZES} == SIZES
    assert (config.model.token_types, config.model.norm, config.model.pooler) == (2, "post", True)
    assert config.model.activation == {"bert": "gelu", "fnet": "gelu_tanh"}[name]
    assert config.model.norm_eps == CONFIG[name].get("layer_norm_eps", 1e-12)
    jax.tree.map(
        np.testing.assert_array_equal, ours.from_transformers(name, state, config, "FILE"), params
    )


def test_the_first_names_of_norms(spiece, tmp_path):
    """As google-bert/bert-base-uncased has them."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    state, params = random_weights("fnet")
    old = {
        key.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): x
        for key, x in state.items()
    }
    assert old.keys() != state.keys()
    torch.save({key: torch.tensor(x) for key, x in old.items()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG["fnet"]))
    shutil.copy(spiece, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, gmlp_flax.load(tmp_path).params, params)
    (tmp_path / "pytorch_model.bin").unlink()
    assert "has no model.safetensors and no pytorch_model.bin" in raised(
        RunError, gmlp_flax.load, tmp_path
    )


def test_an_encoder_alone():
    state, _ = random_weights("bert")
    bare = {key: x for key, x in state.items() if key.startswith("bert.")}
    config = ours.config_for("bert", bare, CONFIG["bert"], "FILE")
    assert "5 missing (cls.predictions" in raised(
        RunError, ours.from_transformers, "bert", bare, config, "FILE"
    )


def test_other_weights_are_refused():
    state, _ = random_weights("fnet")
    with pytest.raises(RunError, match=r"FILE .* \(it has bert.x\)"):
        ours.config_for("fnet", {"bert.x": np.ones(3)}, {}, "FILE")
    for table in ("word", "position", "token_type"):  # from which sizes are read
        name = f"fnet.embeddings.{table}_embeddings.weight"
        without = {key: value for key, value in with_heads("fnet", state).items() if key != name}
        for other, message in (
            (state | {name: np.ones(3)}, rf"{name} \[3\], not"),
            (without, rf"missing \({name}\)"),
        ):
            with pytest.raises(RunError, match=message):
                ours.from_transformers(
                    "fnet", other, ours.config_for("fnet", other, {}, "FILE"), "FILE"
                )
    config = ours.config_for("fnet", state, {}, "FILE")
    other = state | {"cls.predictions.decoder.weight": state[words("fnet")] + 1}
    assert "decoder.weight is not the embedding" in raised(
        RunError, ours.from_transformers, "fnet", other, config, "F"
    )
    untied = ours.config_for("fnet", other, {"tie_word_embeddings": False}, "FILE")
    with pytest.raises(RunError, match=r"1 missing \(cls.predictions.decoder.weight\)"):
        ours.from_transformers("fnet", state, untied, "FILE")
    del state["fnet.encoder.layer.1.output.dense.bias"]
    with pytest.raises(RunError, match=r"1 missing \(fnet.encoder.layer.1.output.dense.bias\)"):
        ours.from_transformers("fnet", state, config, "FILE")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu"}, "'hidden_act': 'relu'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"model_type": "roberta"}, "roberta"),
        ({"num_attention_heads": "two"}, "config.json .* expected num_attention_heads"),
        ({"num_attention_heads": 3}, "heads"),
    ],
)
def test_a_config_of_another_model_is_refused(change, message):
    with pytest.raises((RunError, ConfigError), match=message):
        ours.config_for("bert", random_weights("bert")[0], CONFIG["bert"] | change, "FILE")
    with pytest.raises(RunError, match="expected num_attention_heads"):
        ours.config_for("bert", random_weights("bert")[0], {}, "FILE")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder as of Hugging Face: a random tiny BERT, with its config.json and a WordPiece
    vocabulary; and a run folder that the command has made of it."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    folder = tmp_path_factory.mktemp("bert") / "hub"
    states.write(str(folder / "model.safetensors"), with_heads("bert", random_weights("bert")[0]))
    (folder / "config.json").write_text(json.dumps(CONFIG["bert"]))
    text = " ".join(question["context"] for i in range(8) for question in colours(i)["paragraphs"])
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = dict.fromkeys(
        [*special, *tiny.WORDS, *letters, *(f"##{one}" for one in letters), *text.lower().split()]
    )
    (folder / "vocab.txt").write_text("\n".join(list(pieces)[:320]) + "\n")
    run = folder.parent / "run"
    done = preloaded.gmlp("export", f"--model={folder}", f"--out={run}")
    assert done.returncode == 0, done.stderr
    assert "lower-cased" in done.stderr
    return folder, run


def test_what_a_folder_of_bert_becomes(bert):
    _, run = bert
    trained = gmlp_flax.load(str(run))
    jax.tree.map(np.testing.assert_array_equal, trained.params, random_weights("bert")[1])
    ((ranked,),) = trained.predict(["the [MASK] of"], top=3)
    assert len(ranked) == 3 and trained.task.tokenizer.encode(
        "THE"
    ) == trained.task.tokenizer.encode("the")


def test_a_bert_of_the_hub_comes_with_its_tokenizer(bert, tmp_path):
    pytest.importorskip(
        "huggingface_hub", reason="huggingface_hub is not installed (extra: weights)"
    )
    folder, _ = bert
    with hub_server.serve() as hub:
        hub["me/bert"] = {file.name: file.read_bytes() for file in folder.iterdir()}
        settings = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_DISABLE_XET": "1",
        }
        done = preloaded.gmlp(
            "predict", "--workdir=hf-hub:me/bert", input="the [MASK] of\n", **settings
        )
        here = preloaded.gmlp("predict", f"--workdir={folder}", input="the [MASK] of\n")
    assert done.returncode == 0 and done.stdout == here.stdout != "", done.stderr


def test_glue_from_bert(bert, tmp_path):
    """Types, pooler and all: they begin at their own values, two steps before."""
    _, run = bert
    data = tmp_path / "train.tsv"
    rows = (f"the {word}\t{number % 2}\n" for number, word in enumerate(tiny.WORDS))
    data.write_text("sentence\tlabel\n" + "".join(rows))
    options = config_lib.from_file("finetune_glue", "sst2,scale=small")
    options.update(steps=2, batch_size=4, init_from=str(run))
    options.model.update(length=12, pool="cls")
    options.optimizer.warmup = 1
    options.data.update(train=str(data), heldout=str(data), cache=str(tmp_path / "cache"))
    loop.train(options, str(tmp_path / "sst2"))
    tuned, params = loading.load(str(tmp_path / "sst2")), loading.load(str(run)).params
    assert (
        tuned.config.model.block == "transformer"
        and tuned.config.model.norm == "post"
        and tuned.config.model.pooler
    )
    for path in (
        ("segments", "table"),
        ("pooler", "kernel"),
        ("encoder", "blocks", "attention", "proj_in", "kernel"),
    ):
        old, new = params, tuned.params
        for key in path:
            old, new = old[key], new[key]
        assert 0 < np.abs(np.asarray(new) - old).max() < 0.02, path


def test_a_tokenizer_that_does_not_fit(spiece, tmp_path):
    state, _ = random_weights()
    state[words("fnet")], state[ours.BIAS] = state[words("fnet")][:290], state[ours.BIAS][:290]
    states.write(str(tmp_path / "model.safetensors"), state)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG["fnet"]))
    assert "has no tokenizer" in raised(DataError, gmlp_flax.load, tmp_path)
    shutil.copy(spiece, tmp_path)
    assert "300 pieces, the weights have 290 rows" in raised(
        RunError, gmlp_flax.load, tmp_path / "model.safetensors"
    )


def test_fnet_from_a_file_or_a_folder(spiece, tmp_path):
    state, params = random_weights()
    states.write(str(tmp_path / "hub" / "model.safetensors"), with_heads("fnet", state))
    (tmp_path / "hub" / "config.json").write_text(json.dumps(CONFIG["fnet"]))
    shutil.copy(spiece, tmp_path / "hub")
    done = preloaded.gmlp("export", f"--model={tmp_path}/hub", f"--out={tmp_path}/b")
    assert done.returncode == 0, done.stderr
    for source in (tmp_path / "hub" / "model.safetensors", tmp_path / "b"):
        jax.tree.map(np.testing.assert_array_equal, gmlp_flax.load(source).params, params)
