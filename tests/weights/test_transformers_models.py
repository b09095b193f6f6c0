"""RoBERTa, DistilBERT, ModernBERT and Llama of transformers have the same hidden states, logits and
gradients here."""

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
# Name of a test -> the class of the model without "For...", and its options.
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


def classes_of(transformers, kind):
    """The classes of a model and of its config."""
    end = "ForCausalLM" if kind == "Llama" else "ForMaskedLM"
    return getattr(transformers, kind + end), getattr(transformers, f"{kind}Config")


def make(transformers, name, folder):
    """A random model of transformers, saved in a folder."""
    import torch

    torch.manual_seed(0)
    kind, options = MODELS[name]
    make_model, make_config = classes_of(transformers, kind)
    config = make_config(**options, attn_implementation="eager")
    model = make_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.add_(0.1 * noise)
    model.save_pretrained(folder)
    return model


def read(folder):
    """Our config and the parameters of a folder."""
    where = str(folder / "model.safetensors")
    state = weight_files.read(where)
    described = json.loads((folder / "config.json").read_text())
    family = described["model_type"]
    shapes = {}
    for name, array in state.items():
        shapes[name] = array.shape
    config = ours.config_for(family, shapes, described, where)
    model = ours.from_transformers(family, state, config, where)
    return config, model


def largest(array) -> float:
    return float(np.abs(array).max())


@pytest.mark.parametrize(
    "name", marked_unless(["distilbert", "llama, grouped"], MODELS, pytest.mark.slow)
)
def test_models_have_the_logits_and_gradients_of_transformers(transformers, tmp_path, name):
    """One text has padding, and there are more tokens than two windows have."""
    import torch

    theirs = make(transformers, name, tmp_path)
    config, params = read(tmp_path)
    task = tasks.find(config.task)(config)
    rng = np.random.default_rng(0)
    lengths = np.array([[40], [33]])
    is_text = np.arange(40) < lengths
    ids = rng.integers(3, 50, size=(2, 40))
    pad_id = theirs.config.pad_token_id
    ids = np.where(is_text, ids, pad_id)
    numbers = rng.normal(size=(2, 40, 50))
    weights = numbers.astype(np.float32)
    weights *= is_text[..., None]
    mask = torch.tensor(is_text)
    out = theirs(torch.tensor(ids), attention_mask=mask, output_hidden_states=True)
    log_shares = out.logits.log_softmax(-1)
    their_loss = (torch.tensor(weights) * log_shares).sum()
    their_loss.backward()
    last_hidden = out.hidden_states[-1]
    their_hidden = last_hidden.detach().numpy()
    their_logits = out.logits.detach().numpy()
    their_gradient = theirs.get_input_embeddings().weight.grad.numpy()

    def our_loss(params):
        module = task.bind(params)
        padding_mask = jnp.asarray(is_text)
        hidden = module.hidden(ids, padding_mask=padding_mask)
        logits = module.logits(hidden)
        log_shares_of_tokens = jax.nn.log_softmax(logits)
        loss = (weights * log_shares_of_tokens).sum()
        return loss, (hidden, logits)

    gradient_of = quick_jit(jax.value_and_grad(our_loss, has_aux=True))
    (loss, (hidden, logits)), gradients = gradient_of(params)
    assert largest(their_hidden) > 1
    hidden_errors = (hidden - their_hidden)[is_text]
    assert largest(hidden_errors) < 1e-5
    logit_errors = (logits - their_logits)[is_text]
    assert largest(logit_errors) < 1e-4
    expected_loss = pytest.approx(their_loss.item(), rel=1e-5)
    assert float(loss) == expected_loss
    # RoBERTa's gradient of padding's embedding is not computed: padding_idx
    gradient_error = largest(gradients["embedding"] - their_gradient)
    assert gradient_error < 1e-4 * largest(their_gradient)


def described(transformers, name, **changes):
    """The content of config.json, with changes."""
    kind, options = MODELS[name]
    _, make_config = classes_of(transformers, kind)
    config = make_config(**options)
    return {**config.to_dict(), **changes}


LINEAR_ROPE = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_theta": 1e4, "rope_type": "yarn"}
IRREGULAR_LAYERS = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("llama", {"rope_scaling": LINEAR_ROPE}, "rope_type 'linear'"),
        ("llama", {"rope_parameters": YARN}, "'yarn'"),
        ("llama", {"hidden_act": "gelu"}, "'hidden_act': 'gelu'"),
        ("llama", {"attention_bias": True}, "'attention_bias': True"),
        ("llama", {"num_key_value_heads": 3}, "model.kv_heads is 3"),
        ("llama", {"num_attention_heads": None}, "num_attention_heads is None"),
        ("modernbert", {"hidden_activation": "silu"}, "'hidden_activation': 'silu'"),
        ("modernbert", {"classifier_activation": "gelu_new"}, "classifier_activation"),
        ("modernbert", {"norm_bias": True}, "'norm_bias': True"),
        ("modernbert", {"layer_types": IRREGULAR_LAYERS}, "which is not regular"),
        ("modernbert", {"norm_eps": "small"}, "norm_eps is 'small'"),
        ("distilbert", {"activation": "relu"}, "'activation': 'relu'"),
        ("roberta", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("roberta", {"is_decoder": True}, "'is_decoder': True"),
        ("llama", {"num_hidden_layers": 32}, "has 3 layers, and its config.json says"),
        ("distilbert", {"n_layers": 2}, "has 3 layers, and its config.json says n_layers=2"),
    ],
)
def test_unsupported_models_are_refused(transformers, tmp_path, name, change, words):
    make(transformers, name, tmp_path)
    shapes = weight_files.shapes(str(tmp_path / "model.safetensors"))
    content = described(transformers, name, **change)
    family = content["model_type"]
    errors = (RunError, ConfigError)
    message = raised(errors, ours.config_for, family, shapes, content, "FILE")
    assert words in message
    assert message.startswith("FILE")


def test_configs_of_older_versions_are_read(transformers, tmp_path):
    """ModernBERT's keys before layers had types, and Llama's theta."""
    make(transformers, "modernbert", tmp_path)
    shapes = weight_files.shapes(str(tmp_path / "model.safetensors"))
    old = {"global_attn_every_n_layers": 4, "local_rope_theta": 5e3}
    content = described(transformers, "modernbert", **old)
    del content["layer_types"]
    del content["rope_parameters"]
    model = ours.config_for("modernbert", shapes, content, "FILE").model
    assert model.global_every == 4
    assert model.window == 8
    assert model.length == 40
    assert model.rotary_theta == 160_000.0
    assert model.local_rotary_theta == 5_000.0


def test_missing_fused_layers_are_refused(transformers, tmp_path):
    make(transformers, "modernbert", tmp_path)
    config, _ = read(tmp_path)
    state = weight_files.read(str(tmp_path / "model.safetensors"))
    del state["model.layers.2.mlp.Wi.weight"]
    message = raised(RunError, ours.from_transformers, "modernbert", state, config, "FILE")
    assert "2 missing (model.layers.2.mlp.Wi.weight[0]" in message


# Folders with tokenizers

TEXTS = [" ".join(tiny.WORDS), "a tokenizer of a few words, for the tests"]


@pytest.fixture
def folder(request, transformers, tmp_path):
    """A folder with a random model of 400 pieces and its tokenizer."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    import torch

    torch.manual_seed(0)
    name = request.param
    path = tmp_path / "hub"
    kind, options = MODELS[name]
    make_model, make_config = classes_of(transformers, kind)
    config = make_config(**{**options, "vocab_size": 400})
    make_model(config).save_pretrained(path)
    match name:
        case "distilbert":
            states.write_vocabulary(path, tiny.WORDS)
        case "llama":
            byte_pair_files.save(byte_pair_files.over_characters(TEXTS), path)
        case "modernbert":
            special = byte_pair_files.MODERNBERT
            byte_pair_files.save(byte_pair_files.over_bytes(TEXTS, special), path)
        case "roberta":
            byte_pair_files.save(byte_pair_files.over_bytes(TEXTS), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder",
    marked_unless(["modernbert"], ["roberta", "distilbert", "modernbert"], pytest.mark.nightly),
    indirect=True,
)
def test_folders_fill_masks_and_start_finetuning(folder, tmp_path):
    """Two steps on SST-2 use the folder's tokenizer, and start from the folder's parameters."""
    model = gmlp_flax.load(folder)
    ((ranked,),) = model.predict(["the [MASK] of"], top=3)
    assert len(ranked) == 3
    ends = (("train", "of"), ("dev", "in"))
    for split, end in ends:
        lines = ["sentence\tlabel"]
        for number, word in enumerate(tiny.WORDS):
            label = number % 2
            lines.append(f"the {word} {end}\t{label}")
        path = tmp_path / f"{split}.tsv"
        path.write_text("\n".join(lines) + "\n")
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
        expected = model.config.model[key]
        assert start[key] == expected, key
    embedding = np.asarray(tuned.params["embedding"])
    old_embedding = model.params["embedding"]
    change = largest(embedding - old_embedding)
    assert 0 < change < 0.01


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_folders_of_llama_continue_texts(folder):
    model = gmlp_flax.load(folder)
    assert model.config.model.causal
    (added,) = model.generate(["the"], tokens=5, temperature=0.0)
    encoded = model.tokenizer.encode("the")
    tokens = [model.tokenizer.cls_id, *encoded]
    batch = np.array([tokens])
    logits = model.logits(batch)
    last_logits = logits[0, -1]
    most_likely = int(np.argmax(last_logits))
    first_word = model.tokenizer.decode([most_likely])
    assert added.startswith(first_word)


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_unsupported_rotary_scaling_is_refused(folder):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    content["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0}
    path.write_text(json.dumps(content))
    message = raised(RunError, gmlp_flax.load, folder)
    assert "rope_type 'llama3'" in message
