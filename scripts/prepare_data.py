"""Tokenises a corpus once, on all cores, into a folder that training reads; trains the tokenizer if none is given.

Usage: python scripts/prepare_data.py CORPUS --out=DIR [--tokenizer=FILE] [more]

CORPUS is a file or folder of text, JSON lines or parquet (also packed, also gs://), a folder prepared by TFDS, or
tfds:NAME. Killed, it goes on where it was when run again, and the result is the same, byte for byte. Give the folder
to training as --config.data.train=DIR.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from gmlp_flax import cli
from gmlp_flax.data import cache, corpora, prepare, prepared, selection, tokenizer_training
from gmlp_flax.data.corpora import Corpus
from gmlp_flax.data.tokenizer import Tokenizer


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # argparse ends in usage and one line; so do the other mistakes.
    parser.error = cli.fail
    parser.add_argument("corpus", help="what to tokenise")
    parser.add_argument("--out", required=True, help="folder for the result; with --train_tokenizer_only, the file")
    parser.add_argument("--split", default="", help="of a corpus that has splits, e.g. train; default: all of it")
    parser.add_argument("--tokenizer", default="", help="a SentencePiece model or BERT's vocab.txt; default: train one")
    parser.add_argument("--vocab_size", type=int, default=32_000, help="pieces of a tokenizer that is trained (32000)")
    parser.add_argument(
        "--tokenizer_sample", type=int, default=tokenizer_training.SAMPLE,
        help="characters to train a tokenizer on, at most, from the beginning of each part (%(default)s)",
    )
    parser.add_argument("--train_tokenizer_only", action="store_true", help="write the tokenizer to --out and end")
    parser.add_argument("--heldout_share", type=float, default=0.0, help="share of documents that is held out (0)")
    parser.add_argument("--side", default="train", help="train or heldout: what to take where there is a share")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cores to use (all)")
    parser.add_argument("--max_bad_records", type=int, default=0, help="as many records that do not parse are skipped")
    parser.add_argument(
        "--shard_bytes", type=int, default=prepare.SHARD_BYTES, help="bytes of the corpus in a shard (%(default)s)"
    )
    where = "where trained tokenizers are kept (%(default)s)"
    parser.add_argument("--cache", default=cache.default_folder(), help=where)
    options = parser.parse_args()
    for name in ("vocab_size", "tokenizer_sample", "workers", "shard_bytes"):
        if getattr(options, name) < 1:
            cli.fail(f"--{name}={getattr(options, name)}: expected a positive number")
    corpus, out = (os.path.realpath(path) for path in (options.corpus, options.out))
    if os.path.commonpath([corpus, out]) == corpus:
        cli.fail(f"--out={options.out} lies in the corpus, which would grow by it; give a folder beside it")
    return options


def find_tokenizer(options: argparse.Namespace, corpus: Corpus, chosen: selection.Selection) -> Tokenizer:
    """The tokenizer that is given, or one trained on the training side of the documents, now or before."""
    if options.tokenizer:
        return Tokenizer.load(options.tokenizer)
    print(f"training a tokenizer of {options.vocab_size} pieces, or taking the one in {options.cache}", file=sys.stderr)
    return tokenizer_training.cached_tokenizer(
        corpus, options.vocab_size, options.cache, selection=chosen._replace(side="train"),
        sample=options.tokenizer_sample, max_bad_records=options.max_bad_records,
    )


def report(made: prepared.Prepared, seconds: float, side: str) -> None:
    """Prints what was made, and how to train on it."""
    shards, vocabulary = len(made.index["shards"]), made.tokenizer.vocab_size
    print(f"documents        {made.documents:,}")
    print(f"tokens           {made.tokens:,} ({made.tokens / max(seconds, 1e-9):,.0f} a second, this time)")
    print(f"shards           {shards}, in {made.folder}")
    print(f"skipped records  {made.skipped}")
    for message in [message for shard in made.index["shards"] for message in shard["skipped_first"]][:5]:
        print(f"                 {message}")
    print(f"tokenizer        {os.path.join(made.folder, prepared.TOKENIZER)}, {vocabulary} pieces")
    print(f"to use it        --config.data.{side}={made.folder} --config.model.vocab_size={vocabulary} (or more)")


def main() -> None:
    """Prepares a corpus."""
    options = arguments()
    chosen = selection.Selection(options.heldout_share, options.side)
    chosen.check()
    corpus = corpora.open_corpus(options.corpus, options.split)
    tokenizer = find_tokenizer(options, corpus, chosen)
    if options.train_tokenizer_only:
        tokenizer.save(options.out)
        print(f"tokenizer        {options.out}, {tokenizer.vocab_size} pieces")
        return
    began = time.perf_counter()
    made = prepare.prepare(
        corpus, tokenizer, options.out, selection=chosen, workers=options.workers,
        max_bad_records=options.max_bad_records, shard_bytes=options.shard_bytes,
    )
    report(made, time.perf_counter() - began, options.side)


if __name__ == "__main__":
    cli.explained(main)
