"""The benchmark's parts about finetuning next to pretraining, and about compiling."""

from __future__ import annotations

import time

import jax

from gmlp_flax import config as config_lib
from gmlp_flax.benchmarks.timing import Row, measure, per_second, ratios, row, step_call
from gmlp_flax.paper import published, recipes
from gmlp_flax.planning import dry_run
from gmlp_flax.training.partition import Partition

MODELS = ("sgu", "amlp_36", "bert_rel")  # of c4_ablation
TASKS = ("text_classification", "question_answering")


def bench_finetune(repeats: int) -> list[Row]:
    """The small models of c4_ablation, in batches of 16: only heads and losses differ."""
    rows = []
    for name in MODELS:
        pretraining = config_lib.open_config(f"c4_ablation:{name},scale=small")
        calls = {"pretraining": step_call(pretraining)}
        for task in TASKS:
            finetuning = config_lib.changed(pretraining, task)
            finetuning.model.mask_padding = True
            calls[task] = step_call(finetuning)
        seconds = measure(calls, repeats)
        rates = per_second(pretraining.batch_size, seconds["pretraining"])
        rows.append(row(f"{name}: pretraining", rates, "examples/s"))
        for task in TASKS:
            speed = ratios(seconds["pretraining"], seconds[task])
            rows.append(row(f"{name}: {task}, share of its speed", speed, "x", ">= 0.9"))
    return rows


def bench_compile() -> list[Row]:
    """gMLP-xlarge, 144 layers, from config to executable."""
    config = recipes.language_model("gmlp_xlarge")
    config.model.vocab_size = published.VOCAB_SIZE
    config.batch_size = jax.device_count()
    start = time.perf_counter()
    lowered = dry_run.lower(config, Partition.make())
    lowered_after = time.perf_counter() - start
    lowered.compile()
    compiled_after = time.perf_counter() - start
    return [
        row("gMLP-xlarge: lower", [lowered_after], "s"),
        row("gMLP-xlarge: lower and compile", [compiled_after], "s", "< 60"),
    ]
