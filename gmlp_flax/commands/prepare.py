"""Tokenises a corpus once, on all cores, into a folder that training reads; trains the tokenizer if none is given.

    gmlp prepare books.jsonl.xz --out=tokens/books --vocab_size=8000
    gmlp prepare CORPUS --out=DIR --tokenizer=FILE

CORPUS is a file or folder of text, JSON lines or parquet (also compressed, also gs://), a folder prepared by TFDS, or
tfds:NAME. DIR may be gs://BUCKET/FOLDER. If it is killed, the same command goes on where it was, and the result is the
same, byte for byte. Give the folder to training as --config.data.train=DIR.
"""

from __future__ import annotations

import argparse
import os
import time

from gmlp_flax.commands import cli
from gmlp_flax.data.storage import cache
from gmlp_flax.data.storage.buckets import is_remote
from gmlp_flax.data.text import corpora, prepare, prepared, selection, tokenizer_training
from gmlp_flax.data.text.corpora import Corpus
from gmlp_flax.data.text.tokenizer import Tokenizer


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.ArgumentParser("prepare", __doc__)
    parser.add_argument("corpus", metavar="CORPUS", help="the text to tokenise")
    parser.add_argument("--out", required=True, help="folder for the result; with --train_tokenizer_only, the file")
    parser.add_argument("--split", default="", help="a split, such as train, if the corpus has splits; default: all")
    parser.add_argument("--tokenizer", default="", help="a SentencePiece model or BERT's vocab.txt; default: train one")
    parser.add_argument("--vocab_size", type=int, default=32_000, help="pieces of a tokenizer that is trained (32000)")
    parser.add_argument(
        "--tokenizer_sample", type=int, default=tokenizer_training.SAMPLE,
        help="characters to train a tokenizer on, at most, from the beginning of each part (%(default)s)",
    )
    parser.add_argument("--train_tokenizer_only", action="store_true", help="write the tokenizer to --out and end")
    parser.add_argument("--heldout_share", type=float, default=0.0, help="share of documents to hold out (0)")
    parser.add_argument("--side", default="train", help="train or heldout: the documents to take if some are held out")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cores to use (all)")
    parser.add_argument("--max_bad_records", type=int, default=0, help="skip so many records that do not parse (0)")
    parser.add_argument(
        "--shard_bytes", type=int, default=prepare.SHARD_BYTES, help="bytes of the corpus in a shard (%(default)s)"
    )
    kept = "folder for trained tokenizers (%(default)s)"
    parser.add_argument("--cache", default=cache.default_folder(), help=kept)
    options = parser.parse_args()
    for name in ("vocab_size", "tokenizer_sample", "workers", "shard_bytes"):
        if not 1 <= getattr(options, name) < 2**31:
            cli.fail(f"--{name}={getattr(options, name)}: expected a number from 1 to 2,147,483,647")
    corpus, out = (path if is_remote(path) else os.path.realpath(path) for path in (options.corpus, options.out))
    if is_remote(corpus) == is_remote(out) and os.path.commonpath([corpus, out]) == corpus.rstrip("/"):
        cli.fail(f"--out={options.out} lies in the corpus, which would grow by it; give a folder beside it")
    return options


def find_tokenizer(options: argparse.Namespace, corpus: Corpus, chosen: selection.Selection) -> Tokenizer:
    """The tokenizer of --tokenizer, or one trained on the training side of the documents, now or before."""
    if options.tokenizer:
        return Tokenizer.load(options.tokenizer)
    return tokenizer_training.cached_tokenizer(
        corpus, options.vocab_size, options.cache, selection=chosen._replace(side="train"),
        sample=options.tokenizer_sample, max_bad_records=options.max_bad_records,
    )


def report(made: prepared.Prepared, seconds: float, side: str) -> None:
    """Prints the size of the result, and how to train on it."""
    shards, vocabulary = len(made.index["shards"]), made.tokenizer.vocab_size
    print(f"documents        {made.documents:,}")
    print(f"tokens           {made.tokens:,} ({made.tokens / max(seconds, 1e-9):,.0f} per second, this time)")
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


def run() -> None:
    """The command line."""
    cli.explained(main)
