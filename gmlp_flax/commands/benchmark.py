"""Measures speed and memory, as ratios within one run: you can trust those even on a shared, noisy
machine.

    gmlp benchmark
    gmlp benchmark step images --repeats=9 --json=rows.json --images=photos.tar

Without a PART, measures all of them:

    step          gMLP-S's training step and forward pass, compared with one large product
    peers         training steps and forward passes compared with models of timm, transformers and
                  g-mlp-pytorch (extra `parity`), eager and under torch.compile; all of them take
                  long on a CPU, so choose some with --models; in float32 or bfloat16 (--dtype)
    products      matrix products of gMLP-S, ResMLP-S12 and Mixer-B/16 one by one, forwards and for
                  both gradients, compared with torch's (extra `parity`)
    device        models on one accelerator, at the best of several settings; forms of attention, of
                  the gate and of Toeplitz products; timm's and transformers' models under
                  torch.compile (extra `parity`)
    long          the training step on one sequence of 512 to 16,384 tokens, by FFT and by the
                  materialized matrix
    toeplitz      the forms of a Toeplitz product at n = 64 to 8192: where blocks and FFT become
                  faster
    fourier       FNet's transform and its gradient, by matrix products and by FFT, at 8 to 4,096
                  tokens
    mixers        the training step of each row of `gmlp reproduce alternatives`, over the number of
                  tokens
    precision     gradients in bfloat16 compared with float32, by parameter: relative errors, with
                  and without model.residual_dtype=float32, for two models or all (--rows=all), with
                  12 blocks or another number (--layers)
    text          tokens per second: preparing text compared with the bare tokenizer, and batches
                  from prepared ids
    images        images per second and core compared with plain Pillow, from JPEG files (--images)
                  or synthetic photographs
    export        models in the formats of `gmlp export` (extras `onnx`, `stablehlo`): megabytes,
                  milliseconds, and the accuracy of models that come with the package; --models
    finetune      the training step of finetuning compared with that of pretraining
    compile       gMLP-xlarge, 144 layers: seconds to lower and to compile its training step
    memory        the training step compiled for TPU slices (extra `plan`): temporaries per chip,
                  recomputed products
    training      our Transformers compared with those of transformers (extra `parity`), trained on
                  the same batches, masks and rates (--steps, --rate, --data); --models: bert_full,
                  hf_prenorm, hf_bert, bert_rel_full, hf_prenorm_rel, hf_mpnet
    packages      megabytes of the packages that an installation without extras needs
    parity        models compared with timm's and transformers' with the same weights (extra
                  `parity`): largest relative errors

Each figure is a median with its range over the repeats. Candidates that are compared alternate. A
figure with a goal says whether it was reached, unless its repeats differ by more than a third.
--csv=FILE keeps the rows with the machine they were measured on: its processor, cores and software,
the date, and whether it was idle. Rows that the file has already are kept.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from absl import flags

from gmlp_flax.benchmarks.machine import Machine
from gmlp_flax.benchmarks.results_file import ResultsFile
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, UserError, did_you_mean
from gmlp_flax.io import json_files
from gmlp_flax.io.logs import to_stderr

# Part -> the module of gmlp_flax.benchmarks that has its function bench_PART, which takes the flags
# that it names.
PARTS = {
    "step": "models",
    "peers": "peers",
    "products": "products",
    "device": "device",
    "toeplitz": "models",
    "long": "models",
    "fourier": "models",
    "mixers": "mixers",
    "precision": "precision",
    "text": "text",
    "images": "images",
    "export": "exports",
    "finetune": "whole_runs",
    "compile": "whole_runs",
    "memory": "models",
    "training": "beside_transformers",
    "packages": "packages",
    "parity": "parity",
}


def main(argv: list[str]) -> None:
    """Runs the parts asked for, or all."""
    parts = argv[1:]
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"there is no part {part!r}; {did_you_mean(part, PARTS)}")
    values = flags.FLAGS.flag_values_dict()
    values["lengths"] = cli.numbers("lengths")

    kept = ResultsFile.open(values["csv"]) if values["csv"] else None
    machine = Machine.here()
    print(machine)
    rows: list[dict[str, Any]] = []
    for part in parts or PARTS:
        try:
            for entry in _measure(part, values):
                rows.append(entry)
                # each row at once: a machine that is lent may be taken back
                if values["json"]:
                    json_files.write(values["json"], rows)
                if kept is not None:
                    kept.add(entry, machine)
        except UserError as error:
            if parts:
                raise
            to_stderr(f"{part} is left out: {error}")


def _measure(part: str, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Prints the figures of a part, and yields each."""
    module = importlib.import_module(f"gmlp_flax.benchmarks.{PARTS[part]}")
    bench = getattr(module, f"bench_{part}")
    arguments = {}
    for name in inspect.signature(bench).parameters:
        arguments[name] = values[name]
    print(f"\n{part}")
    print(f"{'':62}{'median':>10}{'min':>10}{'max':>10}", flush=True)
    for entry in bench(**arguments):
        print(_line(entry), flush=True)
        yield {"part": part, **entry}


def _line(entry: Mapping[str, Any]) -> str:
    """A row as it is printed."""
    line = f"  {entry['name']:<60}"
    for key in ("median", "min", "max"):
        line += f"{entry[key]:>10.3g}"
    line += f"  {entry['unit']}"
    if entry["goal"]:
        line += f"  (goal {entry['goal']}: {entry['verdict']})"
    return line


def run() -> None:
    """The command line."""
    flags.DEFINE_integer("repeats", 9, "Measurements of each figure.", lower_bound=1)
    flags.DEFINE_string("json", None, "A file: also write the rows there.")
    flags.DEFINE_string("csv", None, "A file: also keep the rows there, with the machine.")
    flags.DEFINE_string("images", None, "JPEG files for the part images: a tar file or a folder.")
    flags.DEFINE_float("minutes", 9.0, "device: starts nothing after this time.", lower_bound=0.0)
    flags.DEFINE_list("models", [], "device, export, peers, training: which models; empty: all.")
    flags.DEFINE_integer(
        "steps", 12, "training: steps of each run; c4_ablation has 900.", lower_bound=1
    )
    flags.DEFINE_float("rate", 4e-3, "training: the peak learning rate.", lower_bound=0.0)
    flags.DEFINE_string("data", "embedded", "training: a text, as config.data.train takes it.")
    flags.DEFINE_list(
        "rows", [], "mixers: which rows; empty: all. precision: which rows, or all; empty: two."
    )
    flags.DEFINE_integer("layers", 12, "precision: number of blocks.", lower_bound=1)
    flags.DEFINE_enum(
        "dtype", "float32", ["float32", "bfloat16"], "peers: type of activations, here and there."
    )
    flags.DEFINE_list("lengths", ["128", "512", "2048"], "mixers: tokens.")
    flags.DEFINE_enum("scale", "small", ["small", "gpu"], "mixers: shapes.")
    cli.run(main, "[PART]...")
