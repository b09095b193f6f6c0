"""Measures speed and memory, as ratios within one run: these are what a shared, noisy machine can tell.

    gmlp benchmark
    gmlp benchmark step images --repeats=9 --json=rows.json --images=photos.tar

Without a PART, all of them:

    step      gMLP-S, 224 px, f32, batch 8, training step and forward pass: beside one large matrix product, whose
              matrices fill the cache (2048) or exceed it as the model does (4096), and beside timm's gmlp_s16_224
              under torch if it is installed (extra `bench`)
    device    gMLP-S and -B, gMLP-base and aMLP-base on one accelerator, each at its best batch: examples or tokens per
              second, share of the rate of one large product, memory; beside timm's gMLP-S under torch.compile
    long      the training step on one sequence of 512 to 16,384 tokens, FFT beside the materialised matrix
    toeplitz  the two Toeplitz algorithms, forward and backward, at n = 64 to 8192: where FFT overtakes
    fourier   FNet's transform and its gradient by matrix products and by FFT, at 8 to 4,096 tokens
    mixers    the training step of each row of `gmlp reproduce alternatives`, in small, over the number of tokens:
              seconds, memory of its program, operations. --rows and --lengths choose
    text      tokens per second: preparing text beside the bare tokenizer, and batches from prepared ids
    images    images per second and core: decoded, cropped and flipped, through AutoAugment, beside plain Pillow; and
              two worker processes beside one. On JPEG files (--images), or on made-up photographs
    finetune  the training step of finetuning beside that of pretraining, the same encoder at n = 128
    memory    the training step compiled for TPU slices (extra `plan`): temporaries per chip, products recomputed;
              gMLP-S and -B, and the seven models of Table 5
    compile   gMLP-xlarge, 144 layers: seconds to lower and compile its training step for this machine
    loop      share of a short run's time that the device may wait for data, reports and checkpoints
    parity    nine models beside timm's, and FNet-base beside that of transformers, with the same random weights (extra
              `parity`): the largest relative errors of logits, and of timm's models gradients, in float32
    transformers  the small Transformers of c4_ablation beside those of the package transformers (extra `parity`), which
              torch trains on the same batches, masks and rates: held-out perplexity over training. --models chooses
              among bert, bert_rel (as in c4_ablation), bert_full, bert_rel_full (with BERT's norm on the embedding and
              its transform layer), hf_bert, hf_mpnet (which differ from ours as the command prints), hf_prenorm and
              hf_prenorm_rel (the same as bert_full and bert_rel_full)

Each figure is a median with its range over the repeats; compared candidates run alternately.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, RunError, did_you_mean

# Part -> the module of gmlp_flax.benchmarks that has it, as bench_PART.
PARTS = {
    "step": "models",
    "device": "device",
    "toeplitz": "models",
    "long": "models",
    "fourier": "models",
    "mixers": "mixers",
    "text": "text",
    "images": "images",
    "finetune": "models",
    "memory": "models",
    "compile": "models",
    "loop": "models",
    "parity": "parity",
    "transformers": "transformers_beside",
}


def measured(part: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a part; the rows of its table. Its function takes the flags that it has parameters for."""
    bench = getattr(importlib.import_module(f"gmlp_flax.benchmarks.{PARTS[part]}"), f"bench_{part}")
    return bench(**{name: values[name] for name in inspect.signature(bench).parameters})


def main(argv: list[str]) -> None:
    """Runs the parts asked for, or all."""
    parts = argv[1:]
    if unknown := [part for part in parts if part not in PARTS]:
        raise ConfigError(f"there is no part {unknown[0]!r}; {did_you_mean(unknown[0], PARTS)}")
    values = flags.FLAGS.flag_values_dict() | {
        "seeds": cli.numbers("seeds"),
        "rate": cli.numbers("rate", float),
        "lengths": cli.numbers("lengths"),
    }
    from gmlp_flax.checkpoints import run_folder  # imports JAX

    rows = []
    for part in parts or PARTS:
        try:
            table = measured(part, values)
        except RunError as error:
            if parts:
                raise
            print(f"{part} is left out: {error}", file=sys.stderr)
            continue
        rows += [{"part": part, **entry} for entry in table]
        print(f"\n{part}\n{'':62}{'median':>10}{'min':>10}{'max':>10}")
        for entry in table:
            figures = "".join(f"{entry[key]:>10.3g}" for key in ("median", "min", "max"))
            goal = f"  (goal {entry['goal']})" if entry["goal"] else ""
            print(f"  {entry['name']:<60}{figures}  {entry['unit']}{goal}")
        if values["json"]:
            run_folder.write_json(str(values["json"]), rows)


def run() -> None:
    """The command line."""
    flags.DEFINE_integer("repeats", 9, "Measurements of each figure.", lower_bound=1)
    flags.DEFINE_string("json", None, "A file: also write the rows there.")
    flags.DEFINE_string("images", None, "JPEG files for the part images: a tar file or a folder.")
    flags.DEFINE_integer("steps", 12, "transformers: steps of each run; c4_ablation has 900.", lower_bound=1)
    flags.DEFINE_list("seeds", ["0"], "transformers: a run for each.")
    flags.DEFINE_list("rate", ["4e-3"], "transformers: peak learning rates, a run for each.")
    flags.DEFINE_list("models", [], "transformers: which; empty: all but bert and bert_rel. device: which; empty: all.")
    flags.DEFINE_string("data", "embedded", "transformers: a text corpus, as config.data.train takes it.")
    flags.DEFINE_float(
        "bias_rate", None, "transformers: factor on the rate of relative biases; empty: as in c4_ablation."
    )
    flags.DEFINE_list("rows", [], "mixers: which; empty: all.")
    flags.DEFINE_list("lengths", ["128", "512", "2048"], "mixers: tokens.")
    flags.DEFINE_enum("scale", "small", ["small", "gpu"], "mixers: shapes.")
    cli.run(main, "[PART]...")
