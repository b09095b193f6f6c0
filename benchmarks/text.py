"""The benchmark's part `text`: tokenizing and batching text, next to the bare tokenizer."""

import os
import shutil
import tempfile

import sentencepiece

from gmlp_flax.benchmarks.timing import Row, measure, per_second, ratios, row
from gmlp_flax.data import embedded, pipeline
from gmlp_flax.data.text import corpus, packing, prepare, prepared
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import RunError

BATCHES = 20  # in one measurement


def bench_text(repeats: int) -> list[Row]:
    """Prepares and batches twenty copies of the embedded text, on one core."""
    if not hasattr(os, "sched_setaffinity"):
        raise RunError("the part `text` keeps to one core, which only Linux can: run it on Linux")
    documents = 20 * embedded.embedded_text("train")
    tokenizer = Tokenizer.train(documents, 8000)
    bare = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with tempfile.TemporaryDirectory() as folder:

            def prepare_and_pack() -> None:
                shutil.rmtree(folder)
                text = corpus.in_memory("benchmark", documents)
                tokenized = prepare.prepare(text, tokenizer, folder, prepare.Limits(workers=1))
                windows = packing.Packing(tokenized, 128)
                for first in range(0, len(windows), windows.group):
                    windows.windows(first, first + windows.group)

            calls = {
                "bare": lambda: bare.encode(documents, num_threads=1),
                "prepared": prepare_and_pack,
            }
            seconds = measure(calls, repeats)
            tokenized = prepared.Prepared(folder)
            bare_rates = _millions_per_second(tokenized.tokens, seconds["bare"])
            share = ratios(seconds["bare"], seconds["prepared"])
            rows = [
                row("the bare tokenizer", bare_rates, "M tokens/s"),
                row("tokenized, written and packed: share of its speed", share, "", ">= 0.8"),
                _batches_row(tokenized, 128, 2048, repeats),
                _batches_row(tokenized, 512, 256, repeats),
            ]
    finally:
        os.sched_setaffinity(0, cores)
    return rows


def _batches_row(tokenized: prepared.Prepared, length: int, batch: int, repeats: int) -> Row:
    """Batches of sequences of a length, from prepared ids."""
    mixture = packing.Mixture([packing.Packing(tokenized, length)], [1.0], 0)
    with pipeline.train_batches(mixture, pipeline.Reading(batch)) as batches:

        def take() -> None:
            for _ in range(BATCHES):
                next(batches)

        seconds = measure({"take": take}, repeats)["take"]
    tokens = BATCHES * length * batch
    rates = _millions_per_second(tokens, seconds)
    title = f"batches of {batch} x {length} from prepared ids"
    return row(title, rates, "M tokens/s", ">= 20")


def _millions_per_second(tokens: int, seconds: list[float]) -> list[float]:
    """Rates in millions of tokens."""
    return [rate / 1e6 for rate in per_second(tokens, seconds)]
