"""Speed and memory, as ratios within one run: these are what a shared, noisy machine can tell.

Usage: python scripts/benchmark.py [PART ...] [--repeats=9] [--json=FILE] [--images=TAR_OR_FOLDER]

    step      gMLP-S, 224 px, f32, batch 8, training step and forward pass: beside one large matrix product, whose
              matrices fill the cache (2048) or exceed it as the model does (4096), and beside timm's gmlp_s16_224
              under torch where it is installed (extra `bench`)
    device    gMLP-S and -B, gMLP-base and aMLP-base on one accelerator, each at its best batch: examples or tokens a
              second, share of the rate of one large product, memory; beside timm's gMLP-S under torch.compile
    long      the training step on one sequence of 512 to 16,384 tokens, FFT beside the materialised matrix
    toeplitz  the two Toeplitz algorithms, forward and backward, at n = 64 to 8192: where FFT overtakes
    text      tokens a second: preparing text beside the bare tokenizer, and batches from prepared ids
    images    images a second and core: decoded, cropped and flipped, through AutoAugment, beside plain Pillow; and two
              worker processes beside one. Of JPEG files (--images), or of made-up photographs
    finetune  the training step of finetuning beside that of pretraining, the same encoder at n = 128
    memory    the training step compiled for TPU slices (extra `plan`): temporaries a chip, products recomputed; gMLP-S
              and -B, and the seven models of Table 5
    compile   gMLP-xlarge, 144 layers: seconds to lower and compile its training step for this machine
    loop      share of a short run's time that the device may wait for data, reports and checkpoints

Each figure is a median with its range over the repeats; what is compared runs alternately.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
from absl import logging
from benchmark_device import bench_device
from benchmark_images import bench_images
from measuring import CONFIGS, Row, Worker, example_batch, measure, ratios, row, step_call

from gmlp_flax import cli, config
from gmlp_flax.data import embedded, in_memory, packing, prepare, prepared
from gmlp_flax.data.tokenizer import Tokenizer
from gmlp_flax.interop import parity
from gmlp_flax.models import sizes, toeplitz
from gmlp_flax.training import dry_run, loop, partition
from gmlp_flax.training.errors import RunError

BATCH = 8
MATRICES = (2048, 4096)  # of 16 MB, as large as caches are, and of 64 MB
HUGE_PAGES = "glibc.malloc.hugetlb=1"  # a step touches 580 MB of fresh memory: 149,000 page faults without


def bench_step(repeats: int) -> list[Row]:
    """gMLP-S against the machine and against timm, all with memory in huge pages where the C library can (Linux)."""
    os.environ.setdefault("GLIBC_TUNABLES", HUGE_PAGES)  # read as the workers start
    with Worker(ours_and_products) as ours, Worker(timm_calls) as timm:
        seconds = measure(ours.calls | timm.calls, repeats)
    forward_flops = BATCH * sizes.forward_flops(sizes.PUBLISHED["gmlp_s"])
    # Backward makes two products of each: by the weights, but for the stem, and by the inputs.
    flops = {"ours forward": forward_flops, "ours step": 3 * forward_flops}
    rates = {n: [2 * n**3 / value for value in seconds.pop(f"product {n}")] for n in MATRICES}
    rows = [row(f"one f32 product of {n} x {n}", [rate / 1e9 for rate in rates[n]], "GFLOP/s") for n in MATRICES]
    rows += [row(f"gMLP-S {name}", [BATCH / value for value in values], "images/s") for name, values in seconds.items()]
    for name, count in flops.items():
        for n in MATRICES:
            share = ratios([count / value for value in seconds[name]], rates[n])
            rows.append(row(f"gMLP-S {name}, of that of {n} x {n}", share, "", ">= 0.75" if "step" in name else ""))
    if "timm forward" in seconds:
        for what, goal in (("step", ">= 1.5"), ("forward", ">= 0.95")):
            speedup = ratios(seconds[f"timm {what}"], seconds[f"ours {what}"])
            rows.append(row(f"gMLP-S {what}, ours / timm", speedup, "x", goal))
    return rows


def ours_and_products() -> dict[str, Callable]:
    """What runs under JAX."""
    return {**{f"product {n}": large_product(n) for n in MATRICES}, **our_calls()}


def large_product(n: int) -> Callable:
    """One [n, n] x [n, n] product in float32: what this machine can do."""
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((n, n)), jnp.float32)
    product = jax.jit(jnp.matmul)
    return lambda: product(matrix, matrix).block_until_ready()


def our_calls() -> dict[str, Callable]:
    """A whole training step (AdamW, clipping) and a forward pass of our gMLP-S."""
    options = config.from_file(os.path.join(CONFIGS, "own_images.py"), "gmlp_s")
    options.batch_size, options.model.dtype, options.model.survival = BATCH, "float32", 1.0
    task = dry_run.dataless_task(options)
    forward, params = jax.jit(task.apply), task.init(jax.random.key(0))
    pixels = example_batch(options, partition.make_mesh())["image"]
    return {"ours step": step_call(options), "ours forward": lambda: forward(params, pixels).block_until_ready()}


def timm_calls() -> dict[str, Callable]:
    """The same of timm's, or nothing where torch and timm are not installed."""
    try:
        timm = parity.import_timm()
    except RunError as error:
        print(f"timm is left out: {error}", file=sys.stderr)
        return {}
    import torch

    model = timm.create_model("gmlp_s16_224")
    adamw = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH)

    def one_step() -> None:
        model.train()
        adamw.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()

    def forward() -> None:
        model.eval()
        with torch.inference_mode():
            model(images)

    return {"timm step": one_step, "timm forward": forward}


def bench_toeplitz(repeats: int) -> list[Row]:
    """FFT against the materialised matrix, forward and backward, 16,384 tokens x 128 channels in all."""
    rows = []
    for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        x = jax.random.normal(jax.random.key(0), (16384 // n, n, 128))
        taps = jax.random.normal(jax.random.key(1), (2 * n - 1,))
        calls = {}
        for name, apply in (("direct", toeplitz.apply_direct), ("fft", toeplitz.apply_fft)):
            gradient = jax.jit(jax.grad(lambda taps, x, apply=apply: (apply(taps, x) ** 2).sum(), (0, 1)))
            calls[name] = lambda gradient=gradient: jax.block_until_ready(gradient(taps, x))
            temporary = gradient.lower(taps, x).compile().memory_analysis().temp_size_in_bytes
            rows.append(row(f"n {n} {name}: temporary memory", [temporary / 1e6], "MB"))
        seconds = measure(calls, repeats)
        rows.append(row(f"n {n}: fft's speed over direct's", ratios(seconds["direct"], seconds["fft"]), "x"))
    return rows


def bench_long(repeats: int) -> list[Row]:
    """The training step of a small gMLP on one sequence (configs/long_text.py), with either algorithm."""
    rows = []
    for n in (512, 1024, 2048, 4096, 8192, 16384):
        calls = {}
        for name in ("direct", "fft"):
            options = config.from_file(os.path.join(CONFIGS, "long_text.py"), f"{n},scale=small")
            options.batch_size, options.model.toeplitz = jax.device_count(), name
            compiled = dry_run.lower(options, partition.make_mesh()).compile()
            temporary = compiled.memory_analysis().temp_size_in_bytes / n
            rows.append(row(f"n {n} {name}: temporary memory a token", [temporary / 1e3], "KB"))
            calls[name] = step_call(options)
        seconds = measure(calls, min(repeats, 3))  # at 16,384 tokens a step with the matrix takes many seconds
        rows.append(row(f"n {n} fft: step", seconds["fft"], "s"))
        rows.append(row(f"n {n}: fft's speed over direct's", ratios(seconds["direct"], seconds["fft"]), "x"))
    return rows


def bench_finetune(repeats: int) -> list[Row]:
    """The small models of configs/c4_ablation.py, batches of 16: heads and losses are what differs."""
    rows = []
    for name in ("sgu", "amlp_36", "bert_rel"):
        pretraining = config.from_file(os.path.join(CONFIGS, "c4_ablation.py"), f"{name},scale=small")
        calls = {"pretraining": step_call(pretraining)}
        for task in ("text_classification", "question_answering"):
            finetuning = pretraining.copy_and_resolve_references()
            finetuning.task, finetuning.model.mask_padding = task, True
            calls[task] = step_call(finetuning)
        seconds = measure(calls, repeats)
        rates = [pretraining.batch_size / value for value in seconds["pretraining"]]
        rows.append(row(f"{name}: pretraining", rates, "examples/s"))
        for task in list(calls)[1:]:
            speed = ratios(seconds["pretraining"], seconds[task])
            rows.append(row(f"{name}: {task}, of that", speed, "x", ">= 0.9"))
    return rows


# Config, its argument, examples a step, TPU slice, limits in GB of temporaries a chip and in matrix products.
PROGRAMS = (
    ("own_images.py", "gmlp_s", 4096, "v5e:4x4", 8.5, 17),
    ("imagenet.py", "gmlp_b", 4096, "v5e:4x8", 9.0, 17),
    *(
        ("c4_bert.py", name, 256, "v5p:2x2x2", 42.0 if name == "gmlp_xlarge" else None, None)
        for name, model in sizes.PUBLISHED.items() if model.source == "Table 5"
    ),
)


def bench_memory(_repeats: int) -> list[Row]:
    """gMLP-S, and gMLP-B with all of the paper's recipe, on TPU v5e; Table 5's models on 8 chips of v5p; bfloat16."""
    rows = []
    for file, name, batch, topology, limit, needed in PROGRAMS:
        options = config.from_file(os.path.join(CONFIGS, file), name)
        options.batch_size = batch
        compiled = dry_run.lower(options, partition.make_mesh(options.mesh, dry_run.tpu_devices(topology))).compile()
        temporary, goal = compiled.memory_analysis().temp_size_in_bytes / 1e9, f"<= {limit}" if limit else ""
        rows.append(row(f"{name}, batch {batch}, {topology}: temporaries a chip", [temporary], "GB", goal))
        if needed:
            # A block has 4 products, once forward and twice backward; the stem 1 and 1, the head 1 and 2.
            products = len(re.findall(r"= \S+ (?:dot|convolution)\(", compiled.as_text()))
            rows.append(row(f"{name}: matrix products beyond the needed {needed}", [products - needed], "", "0"))
    return rows


def bench_text(repeats: int) -> list[Row]:
    """Preparing and batching the embedded text, twenty times over, on one core."""
    documents = 20 * embedded.embedded_text("train")
    tokenizer = Tokenizer.train(documents, 8000)
    bare = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with tempfile.TemporaryDirectory() as folder:
            def prepare_and_pack() -> None:
                shutil.rmtree(folder)
                made = prepare.prepare(in_memory.corpus("benchmark", documents), tokenizer, folder, workers=1)
                windows = packing.Packing(made, 128)
                for first in range(0, len(windows), windows.group):
                    windows.windows(first, first + windows.group)

            calls = {"bare": lambda: bare.encode(documents, num_threads=1), "prepared": prepare_and_pack}
            seconds = measure(calls, repeats)
            made = prepared.Prepared(folder)
            rows = [
                row("the bare tokenizer", [made.tokens / value / 1e6 for value in seconds["bare"]], "M tokens/s"),
                row(
                    "tokenised, written and packed, of that", ratios(seconds["bare"], seconds["prepared"]), "", ">= 0.8"
                ),
            ]
            for length, batch in ((128, 2048), (512, 256)):
                with packing.train_batches(packing.Packing(made, length), seed=0, start=0, batch_size=batch) as batches:
                    taken = measure({"20": lambda: [next(batches) for _ in range(20)]}, repeats)["20"]
                rates = [20 * length * batch / value / 1e6 for value in taken]
                rows.append(row(f"batches of {batch} x {length} from prepared ids", rates, "M tokens/s", ">= 20"))
    finally:
        os.sched_setaffinity(0, cores)
    return rows


def bench_compile(_repeats: int) -> list[Row]:
    """gMLP-xlarge from config to executable."""
    options, spec = config.default(), sizes.PUBLISHED["gmlp_xlarge"].spec
    options.model.update(
        layers=spec.layers, length=spec.length, d_model=spec.d_model, d_ffn=spec.d_ffn, vocab_size=sizes.VOCAB_SIZE
    )
    options.batch_size = jax.device_count()
    begin = time.perf_counter()
    lowered = dry_run.lower(options, partition.make_mesh())
    lowered_after = time.perf_counter() - begin
    lowered.compile()
    total = time.perf_counter() - begin
    return [
        row("gMLP-xlarge: lower", [lowered_after], "s"), row("gMLP-xlarge: lower and compile", [total], "s", "< 60"),
    ]


def bench_loop(_repeats: int) -> list[Row]:
    """The quickstart's text run, 150 steps of it."""
    options = config.from_file(os.path.join(CONFIGS, "quickstart_text.py"))
    options.steps = 150
    with tempfile.TemporaryDirectory() as folder:
        waiting = loop.train(options, folder)["waiting"]
    rows = [row(f"the device may wait for {name}", [100 * share], "% of the time") for name, share in waiting.items()]
    return [*rows, row("the device may wait, in all", [100 * sum(waiting.values())], "% of the time", "< 3")]


PARTS = {
    "step": bench_step, "device": bench_device, "toeplitz": bench_toeplitz, "long": bench_long, "text": bench_text,
    "images": bench_images, "finetune": bench_finetune, "memory": bench_memory, "compile": bench_compile,
    "loop": bench_loop,
}


def main() -> None:
    """Runs the parts asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--repeats", type=int, default=9, help="measurements of each figure")
    parser.add_argument("--json", metavar="FILE", help="also write the rows there")
    parser.add_argument("--images", metavar="TAR_OR_FOLDER", help="JPEG files for the part `images`")
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if args.repeats < 1:
        parser.error(f"--repeats={args.repeats}: expected at least 1")
    logging.set_verbosity(logging.ERROR)
    rows: list[Row] = []
    for part in args.parts or PARTS:
        found = PARTS[part](args.repeats, **({"path": args.images} if part == "images" else {}))
        rows += [{"part": part, **entry} for entry in found]
        print(f"\n{part}\n{'':62}{'median':>10}{'min':>10}{'max':>10}")
        for entry in found:
            figures = "".join(f"{entry[key]:>10.3g}" for key in ("median", "min", "max"))
            goal = f"  (goal {entry['goal']})" if entry["goal"] else ""
            print(f"  {entry['name']:<60}{figures}  {entry['unit']}{goal}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    cli.explained(main)
