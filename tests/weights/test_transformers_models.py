"""RoBERTa, DistilBERT, ModernBERT and Llama as transformers saves them: the same hidden states,
logits and gradients, with random weights."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gmlp_flax
from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.io import weight_files
from gmlp_flax.training import loop, pretrained
from gmlp_flax.weights import transformers as ours
from tests.data.text import byte_pair_files
from tests.failures import raised
from tests.models.reference import quick_jit
from tests.selection import marked_unless
from tests.training import tiny
from tests.weights import states

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}
DISTILBERT = {
    "vocab_size": 50,
    "dim": 16,
    "n_layers": 3,
    "hidden_dim": 24,
    "n_heads": 4,
    "max_position_embeddings": 40,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODERNBERT = {**SIZES, **SPECIAL, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}
# Name of a test -> the model's class without "For...", and its config.
MODELS = {
    "roberta": ("Roberta", {**SIZES, "max_position_embeddings": 42, "type_vocab_size": 1}),
    "distilbert": ("DistilBert", DISTILBERT),
    "modernbert": ("ModernBert", {**MODERNBERT, "num_hidden_layers": 8}),
    "modernbert, one layer": ("ModernBert", {**MODERNBERT, "num_hidden_layers": 1}),
    "modernbert, untied": (
        "ModernBert",
        {**MODERNBERT, "tie_word_embeddings": False, "decoder_bias": False},
    ),
    "llama": ("Llama", {**SIZES, **SPECIAL}),
    "llama, grouped": ("Llama", {**SIZES, **SPECIAL, "num_key_value_heads": 2}),
    "llama, wide heads": (
        "Llama",
        {**SIZES, **SPECIAL, "num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": True},
    ),
}


def make(transformers, name, folder):
    """A random model of transformers, saved in a folder."""
    import torch

    torch.manual_seed(0)
    kind, options = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**options, attn_implementation="eager")
    end = "ForCausalLM" if kind == "Llama" else "ForMaskedLM"
    model = getattr(transformers, kind + end)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def read(folder):
    """Our config and parameters of a folder."""
    where = str(folder / "model.safetensors")
    state = weight_files.read(where)
    described = json.loads((folder / "config.json").read_text())
    family = described["model_type"]
    shapes = {name: array.shape for name, array in state.items()}
    config = ours.config_for(family, shapes, described, where)
    return config, ours.from_transformers(family, state, config, where)


@pytest.mark.parametrize("name", MODELS)
def test_random_models(transformers, tmp_path, name, record_property):
    """With padding at the end of one text, on more tokens than two windows have."""
    import torch

    theirs = make(transformers, name, tmp_path)
    config, params = read(tmp_path)
    task = tasks.find(config.task)(config)
    numbers = np.random.default_rng(0)
    ids = numbers.integers(3, 50, size=(2, 40))
    is_text = np.arange(40) < np.array([[40], [33]])
    ids = np.where(is_text, ids, theirs.config.pad_token_id)
    weights = numbers.normal(size=(2, 40, 50)).astype(np.float32) * is_text[..., None]
    out = theirs(torch.tensor(ids), attention_mask=torch.tensor(is_text), output_hidden_states=True)
    loss = (torch.tensor(weights) * out.logits.log_softmax(-1)).sum()
    loss.backward()

    def our_loss(params):
        module = task.bind(params)
        hidden = module.hidden(ids, padding_mask=jnp.asarray(is_text))
        logits = module.logits(hidden)
        return (weights * jax.nn.log_softmax(logits)).sum(), (hidden, logits)

    gradient_of = quick_jit(jax.value_and_grad(our_loss, has_aux=True))
    (value, (hidden, logits)), gradient = gradient_of(params)
    their_hidden = out.hidden_states[-1].detach().numpy()
    hidden_error = np.abs(hidden - their_hidden)[is_text].max()
    logit_error = np.abs(logits - out.logits.detach().numpy())[is_text].max()
    words = theirs.get_input_embeddings().weight.grad.numpy()
    gradient_error = np.abs(gradient["embedding"] - words).max() / np.abs(words).max()
    print(f"{name}: hidden {hidden_error:.1e} logits {logit_error:.1e} grad {gradient_error:.1e}")
    assert np.abs(their_hidden).max() > 1
    assert hidden_error < 1e-5
    assert logit_error < 1e-4
    assert float(value) == pytest.approx(loss.item(), rel=1e-5)
    # RoBERTa's gradient of padding's embedding is not computed: padding_idx
    assert gradient_error < 1e-4


def described(transformers, name, **changes):
    """What config.json says, with changes."""
    kind, options = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**options)
    return {**config.to_dict(), **changes}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "'yarn'"),
        ("llama", {"hidden_act": "gelu"}, "'hidden_act': 'gelu'"),
        ("llama", {"attention_bias": True}, "'attention_bias': True"),
        ("llama", {"num_key_value_heads": 3}, "model.kv_heads is 3"),
        ("llama", {"num_attention_heads": None}, "num_attention_heads is None"),
        ("modernbert", {"hidden_activation": "silu"}, "'hidden_activation': 'silu'"),
        ("modernbert", {"classifier_activation": "gelu_new"}, "classifier_activation"),
        ("modernbert", {"norm_bias": True}, "'norm_bias': True"),
        (
            "modernbert",
            {"layer_types": ["sliding_attention", "full_attention"]},
            "which is not regular",
        ),
        ("modernbert", {"norm_eps": "small"}, "norm_eps is 'small'"),
        ("distilbert", {"activation": "relu"}, "'activation': 'relu'"),
        ("roberta", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("roberta", {"is_decoder": True}, "'is_decoder': True"),
        ("llama", {"num_hidden_layers": 32}, "has 3 layers, and its config.json says"),
        ("distilbert", {"n_layers": 2}, "has 3 layers, and its config.json says n_layers=2"),
    ],
)
def test_what_our_models_have_not_is_refused(transformers, tmp_path, name, change, words):
    make(transformers, name, tmp_path)
    shapes = weight_files.shapes(str(tmp_path / "model.safetensors"))
    content = described(transformers, name, **change)
    message = raised(
        (RunError, ConfigError), ours.config_for, content["model_type"], shapes, content, "FILE"
    )
    assert words in message
    assert message.startswith("FILE")
    assert "\n" not in message


def test_configs_of_older_versions(transformers, tmp_path):
    """ModernBERT's keys before layers had types, and Llama's theta."""
    make(transformers, "modernbert", tmp_path)
    shapes = weight_files.shapes(str(tmp_path / "model.safetensors"))
    content = described(
        transformers, "modernbert", global_attn_every_n_layers=4, local_rope_theta=5e3
    )
    for key in ("layer_types", "rope_parameters"):
        del content[key]
    model = ours.config_for("modernbert", shapes, content, "FILE").model
    assert model.global_every == 4
    assert model.window == 8
    assert model.length == 40
    assert model.rotary_theta == 160_000.0
    assert model.local_rotary_theta == 5_000.0


def test_a_missing_half_of_a_fused_layer(transformers, tmp_path):
    make(transformers, "modernbert", tmp_path)
    config, _ = read(tmp_path)
    state = weight_files.read(str(tmp_path / "model.safetensors"))
    del state["model.layers.2.mlp.Wi.weight"]
    message = raised(RunError, ours.from_transformers, "modernbert", state, config, "FILE")
    assert "2 missing (model.layers.2.mlp.Wi.weight[0]" in message


# Folders with their tokenizers.

TEXTS = [" ".join(tiny.WORDS), "a tokenizer of a few words, for the tests"]


@pytest.fixture
def folder(request, transformers, tmp_path):
    """A random model with a vocabulary of 400 pieces, beside its tokenizer."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    name = request.param
    kind, options = MODELS[name]
    import torch

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**options, "vocab_size": 400})
    end = "ForCausalLM" if kind == "Llama" else "ForMaskedLM"
    getattr(transformers, kind + end)(config).save_pretrained(tmp_path / "hub")
    if name == "distilbert":
        states.write_vocabulary(tmp_path / "hub", tiny.WORDS)
        return tmp_path / "hub"
    if name == "llama":
        tokenizer = byte_pair_files.over_characters(TEXTS)
    elif name == "modernbert":
        tokenizer = byte_pair_files.over_bytes(TEXTS, byte_pair_files.MODERNBERT)
    else:
        tokenizer = byte_pair_files.over_bytes(TEXTS)
    byte_pair_files.save(tokenizer, tmp_path / "hub")
    return tmp_path / "hub"


@pytest.mark.parametrize(
    "folder",
    marked_unless(["modernbert"], ["roberta", "distilbert", "modernbert"], pytest.mark.slow),
    indirect=True,
)
def test_a_folder_fills_masks_and_starts_finetuning(folder, tmp_path):
    """Two steps on SST-2, with the folder's tokenizer: all parameters but the head's begin at the
    folder's values."""
    model = gmlp_flax.load(folder)
    [[ranked]] = model.predict(["the [MASK] of"], top=3)
    assert len(ranked) == 3
    for split, end in (("train", "of"), ("dev", "in")):
        lines = ["sentence\tlabel"]
        for number, word in enumerate(tiny.WORDS):
            lines.append(f"the {word} {end}\t{number % 2}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    options = config_lib.from_file("finetune_glue", "sst2,scale=small")
    options.update(steps=2, batch_size=4, init_from=str(folder))
    options.model.update(length=24)
    options.optimizer.update(warmup=1, learning_rate=1e-3)
    options.data.update(
        train=str(tmp_path / "train.tsv"),
        heldout=str(tmp_path / "dev.tsv"),
        cache=str(tmp_path / "cache"),
    )
    loop.train(options, str(tmp_path / "run"))
    tuned = pretrained.load(tmp_path / "run")
    assert tuned.tokenizer == model.tokenizer
    start = tuned.config.model
    for key in ("positions", "norm", "window", "first_norm", "mlp", "embedding_norm"):
        assert start[key] == model.config.model[key], key
    moved = np.abs(np.asarray(tuned.params["embedding"]) - model.params["embedding"])
    assert 0 < moved.max() < 0.01


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_a_folder_continues_texts(folder):
    model = gmlp_flax.load(folder)
    assert model.config.model.causal
    [added] = model.generate(["the"], tokens=5, temperature=0.0)
    tokens = [model.tokenizer.cls_id, *model.tokenizer.encode("the")]
    most_likely = int(np.argmax(model.logits(np.array([tokens]))[0, -1]))
    assert added.startswith(model.tokenizer.decode([most_likely]))
    described = json.loads((folder / "config.json").read_text())
    described["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0}
    (folder / "config.json").write_text(json.dumps(described))
    message = raised(RunError, gmlp_flax.load, folder)
    assert "rope_type 'llama3'" in message
    assert "\n" not in message
