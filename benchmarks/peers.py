"""The benchmark's part `peers`: our models next to the same models of timm, transformers and
g-mlp-pytorch, in plain torch and under torch.compile: a training step and a forward pass on inputs
of the same shapes, in turn.

Each runs in a separate process. A step is AdamW's with clipped gradients. That of a text model
predicts 15 % of its tokens, as each package does it: from the logits of all tokens in torch, from
theirs only here.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.benchmarks.machine import Machine
from gmlp_flax.benchmarks.timing import (
    Row,
    Worker,
    example_batch,
    measure,
    per_second,
    ratios,
    row,
    step_call,
)
from gmlp_flax.errors import ConfigError, RunError, did_you_mean
from gmlp_flax.paper import recipes
from gmlp_flax.processes import platforms
from gmlp_flax.training.partition import Partition
from gmlp_flax.weights import timm as timm_models
from gmlp_flax.weights.transformers_models import FRAME

VOCABULARY = 32_000
MASKED = 0.15
CLASSES = 1000
LAYERS = 12  # of the gMLP that g-mlp-pytorch's is compared with, a third of the ablation's


class Peer(NamedTuple):
    """A model of another package.

    Attributes:
        package: the package that has it.
        make: (the package, tokens) -> the model in torch.
        ours: (tokens) -> the config of the same model here.
        batches: examples in a step, one by one.
        tokens: in an example, one by one; (0,) for images of 224 x 224.
    """

    package: str
    make: Callable[[Any, int], Any]
    ours: Callable[[int], ConfigDict]
    batches: tuple[int, ...] = (8, 32)
    tokens: tuple[int, ...] = (0,)

    @classmethod
    def of_images(cls, name: str) -> "Peer":
        """A model of timm, by its name there."""

        def make(timm: Any, tokens: int) -> Any:
            return timm.create_model(name)

        def ours(tokens: int) -> ConfigDict:
            return timm_models.config_for(name)

        return cls("timm", make, ours)

    @classmethod
    def of_text(
        cls, package: str, make: Callable[[Any, int], Any], name: str, **model: Any
    ) -> "Peer":
        """A masked language model; `name` and `model` are of `recipes.language_model` and its
        config."""

        def ours(tokens: int) -> ConfigDict:
            options = recipes.language_model(name)
            options.model.update(model, length=tokens, vocab_size=VOCABULARY)
            options.masking.max_predictions = round(MASKED * tokens)
            return options

        return cls(package, make, ours, (8,), (128, 512))


def _hugging_face(family: str) -> Callable[[Any, int], Any]:
    """A masked language model of transformers, with the default sizes of its config (BERT-base's,
    FNet-base's)."""

    def make(transformers: Any, tokens: int) -> Any:
        config_class = getattr(transformers, f"{family}Config")
        sizes = config_class(
            vocab_size=VOCABULARY,
            max_position_embeddings=tokens,
            # as here
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        model_class = getattr(transformers, f"{family}ForMaskedLM")
        return model_class(sizes)

    return make


def _g_mlp(package: Any, tokens: int) -> Any:
    return package.gMLP(num_tokens=VOCABULARY, dim=512, depth=LAYERS, seq_len=tokens, ff_mult=6)


PEERS = {
    "gMLP-S": Peer.of_images("gmlp_s16_224"),
    "Mixer-B/16": Peer.of_images("mixer_b16_224"),
    "ResMLP-S12": Peer.of_images("resmlp_12_224"),
    "ViT-S/16": Peer.of_images("vit_small_patch16_224"),
    "DeiT-S": Peer.of_images("deit_small_patch16_224"),
    "BERT-base": Peer.of_text(
        "transformers", _hugging_face("Bert"), "bert_base", token_types=2, **FRAME
    ),
    "FNet-base": Peer.of_text("transformers", _hugging_face("FNet"), "fnet_base", pooler=True),
    f"gMLP of {LAYERS} layers": Peer.of_text(
        "g_mlp_pytorch", _g_mlp, "gmlp_base", layers=LAYERS, spatial="dense", tie_embeddings=False
    ),
}


def bench_peers(repeats: int, models: Sequence[str], dtype: str) -> Iterator[Row]:
    """Examples per second here, and our speed over that of each peer; a package that is not
    installed is named and left out. `dtype` is that of activations, here and there.

    Raises:
        ConfigError: one of the models is not in PEERS.
    """
    for name in models:
        if name not in PEERS:
            raise ConfigError(f"there is no model {name!r}; {did_you_mean(name, PEERS)}")
    for name in models or PEERS:
        peer = PEERS[name]
        for tokens, batch in itertools.product(peer.tokens, peer.batches):
            setting = Setting(name, batch, tokens, dtype)
            title = str(setting)
            print(f"{title} ...", file=sys.stderr, flush=True)
            try:
                yield from _beside(title, setting, repeats)
            except RunError as error:
                print(f"{title} is left out: {error}", file=sys.stderr, flush=True)


class Setting(NamedTuple):
    """What is measured of a model.

    Attributes:
        name: a key of `PEERS`.
        batch: examples in a step.
        tokens: in an example; 0 for images.
        dtype: of activations.
    """

    name: str
    batch: int
    tokens: int
    dtype: str = "float32"

    def __str__(self) -> str:
        parts = [self.name]
        if self.tokens:
            parts.append(f"n {self.tokens}")
        parts.append(f"batch {self.batch}")
        if self.dtype != "float32":
            parts.append(self.dtype)
        return ", ".join(parts)


class _Goals(NamedTuple):
    """Goals for our speed over that of a peer, in plain torch and under torch.compile."""

    eager: str
    compiled: str


GOALS = {"step": _Goals(">= 1.3", ">= 1.0"), "forward": _Goals(">= 1.0", ">= 1.0")}
# torch's products are MKL's, which are faster on Intel's processors than on others
GOALS_ON_INTEL = GOALS | {"step": _Goals(">= 1.1", ">= 1.0")}


def goals_on(processor: str) -> dict[str, _Goals]:
    """The goals of each kind of call on a processor, by its name."""
    return GOALS_ON_INTEL if "intel" in processor.lower() else GOALS


def _beside(title: str, setting: Setting, repeats: int) -> Iterator[Row]:
    """The rows of one model in one setting."""
    package = PEERS[setting.name].package
    import_beside_torch(package)
    with (
        Worker(functools.partial(our_calls, setting)) as ours,
        Worker(functools.partial(torch_calls, setting, compiled=False)) as eager,
        Worker(functools.partial(torch_calls, setting, compiled=True)) as compiled,
    ):
        workers = {"ours": ours, "eager": eager, "compiled": compiled}
        calls = {}
        for name, worker in workers.items():
            for kind in GOALS:
                calls[f"{name} {kind}"] = worker.calls[kind]
        seconds = measure(calls, repeats)
    processor = Machine.here().processor
    for kind, goals in goals_on(processor).items():
        title_of_kind = f"{title}: {kind}"
        title_of_ratio = f"{title_of_kind}, ours / {package}"
        our_seconds = seconds[f"ours {kind}"]
        rates = per_second(setting.batch, our_seconds)
        yield row(title_of_kind, rates, "examples/s")
        speed = ratios(seconds[f"eager {kind}"], our_seconds)
        yield row(title_of_ratio, speed, "x", goals.eager)
        speed = ratios(seconds[f"compiled {kind}"], our_seconds)
        yield row(f"{title_of_ratio}, torch.compile", speed, "x", goals.compiled)


def our_calls(setting: Setting) -> dict[str, Callable[[], None]]:
    """A training step and a forward pass of our model, in a process that is set up as commands set
    it up."""
    platforms.keep_freed_memory()
    options = PEERS[setting.name].ours(setting.tokens)
    options.batch_size = setting.batch
    options.model.dtype = setting.dtype
    config.validate(options)
    task = tasks.find(options.task)(options)
    params = task.init(jax.random.key(0))
    examples = example_batch(task, Partition.make())

    @jax.jit
    def forward(params: Any, inputs: jax.Array) -> jax.Array:
        model = task.bind(params)
        if not setting.tokens:
            return model(inputs)
        hidden = model.hidden(inputs)
        return model.logits(hidden)

    inputs = examples["tokens" if setting.tokens else "image"]
    return {
        "step": step_call(options),
        "forward": lambda: jax.block_until_ready(forward(params, inputs)),
    }


def torch_calls(setting: Setting, compiled: bool = True) -> dict[str, Callable[[], None]]:
    """A training step and a forward pass of the peer, on a GPU if torch sees one.

    Raises:
        RunError: the package or torch is not installed.
    """
    name, batch, tokens, dtype = setting
    peer = PEERS[name]
    package = import_beside_torch(peer.package)
    import torch

    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = peer.make(package, tokens).to(device)
    if tokens:
        inputs = torch.randint(5, VOCABULARY, (batch, tokens), device=device)
        is_masked = torch.rand(batch, tokens, device=device) < MASKED
        labels = torch.where(is_masked, inputs, -100).flatten()
    else:
        inputs = torch.randn(batch, 3, 224, 224, device=device)
        labels = torch.arange(batch, device=device) % CLASSES
    adamw = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=device == "cuda")
    half = torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16")
    run = torch.compile(model) if compiled else model

    def logits() -> Any:
        outputs = run(inputs)
        return getattr(outputs, "logits", outputs)

    def step() -> None:
        model.train()
        adamw.zero_grad()
        with half:
            predictions = logits().flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(predictions, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()

    def forward() -> None:
        model.eval()
        with torch.inference_mode(), half:
            logits()

    return {"step": step, "forward": forward}
