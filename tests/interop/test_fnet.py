"""FNet's weights as the package transformers names them: read by name, and the same logits."""

import jax
import numpy as np
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.interop import fnet
from gmlp_flax.interop.timm import import_beside_torch
from gmlp_flax.interop.timm_names import to_torch
from gmlp_flax.io import weight_files
from gmlp_flax.paper import recipes
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loading, loop
from tests import preloaded
from tests.training import tiny

SIZES = {"layers": 2, "d_model": 8, "d_ffn": 12, "length": 16, "vocab_size": 320}
TINY = dict(vocab_size=50, hidden_size=16, num_hidden_layers=3, intermediate_size=24, max_position_embeddings=12)


@pytest.fixture
def transformers():
    pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra: parity)")
    return import_beside_torch("transformers")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "spiece.model"
    corpus = tiny.write_corpus(path.parent / "corpus.jsonl")
    with open(corpus) as file:
        Tokenizer.train(list(file), 300).save(path)
    return str(path)


def random_weights():
    """A state dict, and our parameters with the same numbers."""
    config = recipes.language_model("fnet_base")
    config.model.update(SIZES)
    numbers = np.random.default_rng(0)
    shapes = MaskedLanguageModeling.without_data(config).shapes()
    params = jax.tree.map(lambda leaf: (0.3 * numbers.normal(size=leaf.shape)).astype(np.float32), shapes)
    return to_torch(params, fnet.ROWS), params


def with_heads(state):
    """As FNetForPreTraining is saved, by older versions of transformers."""
    return state | {
        "fnet.embeddings.position_ids": np.arange(16)[None],
        "fnet.pooler.dense.weight": np.ones((8, 8), np.float32),
        "fnet.pooler.dense.bias": np.ones(8, np.float32),
        "cls.seq_relationship.weight": np.ones((2, 8), np.float32),
        "cls.seq_relationship.bias": np.ones(2, np.float32),
        "cls.predictions.decoder.weight": state[fnet.WORDS],
        "cls.predictions.decoder.bias": state[fnet.BIAS],
    }


def test_a_saved_file_is_read_by_name(transformers, tmp_path):
    """As save_pretrained writes it, which leaves out what is tied."""
    import torch

    torch.manual_seed(0)
    model = transformers.FNetForMaskedLM(transformers.FNetConfig(**TINY)).eval()
    model.save_pretrained(tmp_path)
    state = weight_files.read(str(tmp_path / "model.safetensors"))
    config = fnet.config_for(state, "the file")
    params = fnet.from_transformers(state, config, "the file")
    tokens = np.arange(24).reshape(2, 12)
    places = np.broadcast_to(np.arange(12), (2, 12))
    with torch.inference_mode():
        theirs = model(torch.tensor(tokens)).logits.numpy()
    ours = MaskedLanguageModeling.without_data(config).apply(params, tokens, places)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("heads", [False, True])
def test_sizes_come_from_the_shapes(heads):
    state, params = random_weights()
    if heads:  # the bias has also the name of its layer, or that alone
        state = with_heads(state)
        del state[fnet.BIAS]
    config = fnet.config_for(state, "FILE")
    assert {name: config.model[name] for name in SIZES} == SIZES
    assert (config.model.token_types, config.model.norm, config.model.activation) == (4, "post", "gelu_tanh")
    jax.tree.map(np.testing.assert_array_equal, fnet.from_transformers(state, config, "FILE"), params)


def test_other_weights_are_refused():
    state, _ = random_weights()
    with pytest.raises(RunError, match=r"FILE .* \(it has bert.x, ...\)"):
        fnet.config_for({"bert.x": np.ones(3)}, "FILE")
    with pytest.raises(RunError, match="FILE"):
        fnet.config_for(state | {"fnet.embeddings.word_embeddings.weight": np.ones(3)}, "FILE")
    config = fnet.config_for(state, "FILE")
    del state["fnet.encoder.layer.1.output.dense.bias"]
    with pytest.raises(RunError, match=r"1 missing \(fnet.encoder.layer.1.output.dense.bias\)"):
        fnet.from_transformers(state, config, "FILE")


def test_the_folder_is_a_run_folder_that_finetuning_starts_from(tokenizer, tmp_path):
    state, params = random_weights()
    fnet.convert(with_heads(state), tokenizer, str(tmp_path / "run"), "FILE")
    trained = loading.load(str(tmp_path / "run"), "best")
    jax.tree.map(np.testing.assert_array_equal, trained.params, params)
    ((ranked,),) = trained.task.predict(trained.weights, ["the [MASK] of"], top=3)
    assert len(ranked) == 3
    data = tmp_path / "train.tsv"
    rows = (f"the {word}\t{number % 2}\n" for number, word in enumerate(tiny.WORDS))
    data.write_text("sentence\tlabel\n" + "".join(rows))
    options = config_lib.from_file("finetune_glue", "sst2,scale=small")
    options.update(steps=2, batch_size=4, init_from=str(tmp_path / "run"))
    options.model.length, options.optimizer.warmup = 12, 1
    options.data.update(train=str(data), heldout=str(data), cache=str(tmp_path / "cache"))
    loop.train(options, str(tmp_path / "sst2"))
    tuned = loading.load(str(tmp_path / "sst2"))
    assert tuned.config.model.block == "fnet" and tuned.params["segments"]["table"].shape == (4, 8)
    moved = np.abs(tuned.params["segments"]["table"] - params["segments"]["table"]).max()
    assert 0 < moved < 0.01  # its own values, two steps further


def test_a_tokenizer_that_is_too_large(tokenizer, tmp_path):
    state, _ = random_weights()
    state[fnet.WORDS], state[fnet.BIAS] = state[fnet.WORDS][:290], state[fnet.BIAS][:290]
    with pytest.raises(RunError, match="300 pieces, the weights have 290 rows"):
        fnet.convert(state, tokenizer, str(tmp_path / "run"), "FILE")
    with pytest.raises(DataError, match="nowhere.model"):
        fnet.convert(state, "nowhere.model", str(tmp_path / "run"), "FILE")
    assert not (tmp_path / "run").exists()


def test_the_command(tokenizer, tmp_path):
    pytest.importorskip("safetensors")
    state, _ = random_weights()
    weight_files.write(str(tmp_path / "model.safetensors"), with_heads(state))
    given = ["--model=fnet", f"--checkpoint={tmp_path}/model.safetensors", f"--out={tmp_path}/run"]
    assert "--tokenizer is missing" in preloaded.gmlp("import", *given).stderr
    done = preloaded.gmlp("import", *given, f"--tokenizer={tokenizer}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {tmp_path}/run: an FNet from {tmp_path}/model.safetensors\n"
    assert (tmp_path / "run" / "config.json").exists()
