"""Tokenises a corpus once, on all cores, into a folder that training reads; trains the tokenizer if none is given.

    gmlp prepare books.jsonl.xz --out=tokens/books --vocab_size=8000
    gmlp prepare CORPUS --out=DIR --tokenizer=FILE
    gmlp prepare listops:paper --out=lra/listops

CORPUS is a file or folder of text, JSON lines or parquet (also compressed, also gs://), a folder prepared by TFDS, or
tfds:NAME. DIR may be gs://BUCKET/FOLDER. If it is killed, the same command goes on where it was, and the result is the
same, byte for byte. Give the folder to training as --config.data.train=DIR.

listops:paper and listops:TRAIN,VALIDATION,TEST, three numbers of trees, make the data set ListOps of Long Range Arena:
labelled text for --config=lra_listops. It takes a minute or two, is all or nothing, and has flags of its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

from gmlp_flax.commands import cli
from gmlp_flax.data.listops import folder
from gmlp_flax.data.listops.trees import Grammar
from gmlp_flax.data.text import corpora, prepare, selection, tokenizer_training
from gmlp_flax.data.text.corpora import Corpus
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io import cache, files
from gmlp_flax.io.buckets import is_remote

LISTOPS = "listops:"  # what its name begins with


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.ArgumentParser("prepare", __doc__)
    parser.add_argument("corpus", metavar="CORPUS", help="the text to tokenise; or listops:SIZE")
    parser.add_argument("--out", required=True, help="folder for the result; with --train_tokenizer_only, the file")
    parser.add_argument("--split", default="", help="a split, such as train, if the corpus has splits; default: all")
    parser.add_argument("--tokenizer", default="", help="a SentencePiece model or BERT's vocab.txt; default: train one")
    parser.add_argument("--vocab_size", type=int, default=32_000, help="pieces of a tokenizer that is trained (32000)")
    parser.add_argument(
        "--tokenizer_sample",
        type=int,
        default=tokenizer_training.SAMPLE,
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
    made, grammar = parser.add_argument_group("of listops:SIZE alone"), Grammar()
    made.add_argument("--seed", type=int, default=0, help="decides all trees (0)")
    made.add_argument(
        "--lengths",
        default=f"{grammar.shortest},{grammar.longest}",
        help="a tree has more symbols than the first number and fewer than the second (%(default)s)",
    )
    made.add_argument("--depth", type=int, default=grammar.depth, help="levels of a tree, at most (%(default)s)")
    options = parser.parse_args()
    strange = _strange(parser, options)
    if strange:
        cli.fail(strange)
    if options.corpus.startswith(LISTOPS):
        return options
    for name in ("vocab_size", "tokenizer_sample", "workers", "shard_bytes"):
        if not 1 <= getattr(options, name) < 2**31:
            cli.fail(f"--{name}={getattr(options, name)}: expected a number from 1 to 2,147,483,647")
    if options.max_bad_records < 0:
        cli.fail(f"--max_bad_records={options.max_bad_records}: expected 0 or more")
    corpus, out = (path if is_remote(path) else os.path.realpath(path) for path in (options.corpus, options.out))
    if f"{out.rstrip('/')}/".startswith(f"{corpus.rstrip('/')}/"):
        cli.fail(f"--out={options.out} lies in the corpus, which would grow by it; give a folder beside it")
    return options


def _strange(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """What to say if flags were given that do not count; an empty string if none was."""
    own, listops = {"seed", "lengths", "depth"}, options.corpus.startswith(LISTOPS)
    given = [name for name, value in vars(options).items() if value != parser.get_default(name)]
    wrong = [name for name in given if name not in ("corpus", "out") and (name in own) != listops]
    if not wrong:
        return ""
    which = f"is not a flag of {LISTOPS}SIZE" if listops else f"is a flag of {LISTOPS}SIZE alone"
    return f"--{wrong[0]} {which}: leave it out"


def make_listops(options: argparse.Namespace) -> None:
    """Makes the data set ListOps and prints its statistics.

    Raises:
        DataError: the size or a flag makes no sense, or as in `listops.folder.make`.
    """
    sizes = folder.sizes_of(options.corpus.removeprefix(LISTOPS))
    limits = options.lengths.split(",")
    if len(limits) != 2 or not all(each.isascii() and each.isdecimal() and len(each) < 10 for each in limits):
        raise DataError(f"--lengths={options.lengths}: expected two numbers, as in --lengths=500,2000")
    if not 0 <= options.seed < 2**31:
        raise DataError(f"--seed={options.seed}: expected a number from 0 to 2,147,483,647")
    grammar = Grammar(int(limits[0]), int(limits[1]), options.depth)
    folder.check(grammar)
    out = options.out if is_remote(options.out) else os.path.realpath(options.out)
    found = folder.make(out, sizes, grammar, options.seed)
    report_listops(found, out)


def report_listops(found: Mapping[str, Mapping[str, Any]], out: str) -> None:
    """Prints the statistics of each split, and how to train on them."""
    print(f"{'split':<12}{'trees':>8}  {'symbols':<26}{'depth':<24}share of the values 0 to 9, %")
    for name, split in found.items():
        (shortest, length, longest), (lowest, depth, deepest) = split["length"], split["depth"]
        lengths, depths = f"{shortest} to {longest}, mean {length:.0f}", f"{lowest} to {deepest}, mean {depth:.2f}"
        shares = " ".join(f"{100 * share:.1f}" for share in split["values"])
        print(f"{name:<12}{split['trees']:>8,}  {lengths:<26}{depths:<24}{shares}")
    most = max(split["length"][2] for split in found.values())
    print(f"to use it     --config=lra_listops --config.data.train={shlex.quote(out)}")
    print(f"              with --config.model.length={most + 2} or more, no tree is cut")


def find_tokenizer(options: argparse.Namespace, corpus: Corpus, chosen: selection.Selection) -> Tokenizer:
    """The tokenizer of --tokenizer, or one trained on the training side of the documents, now or before."""
    if options.tokenizer:
        return Tokenizer.load(options.tokenizer)
    return tokenizer_training.cached_tokenizer(
        corpus,
        options.vocab_size,
        options.cache,
        selection=chosen._replace(side="train"),
        sample=options.tokenizer_sample,
        max_bad_records=options.max_bad_records,
    )


def report(made: Prepared, seconds: float, side: str) -> None:
    """Prints the size of the result, and how to train on it."""
    shards, vocabulary = len(made.index["shards"]), made.tokenizer.vocab_size
    print(f"documents        {made.documents:,}")
    print(f"tokens           {made.tokens:,} ({made.tokens / max(seconds, 1e-9):,.0f} per second, this time)")
    print(f"shards           {shards}, in {made.folder}")
    print(f"skipped records  {made.skipped}")
    for message in [message for shard in made.index["shards"] for message in shard["skipped_first"]][:5]:
        print(f"                 {message}")
    print(f"tokenizer        {os.path.join(made.folder, TOKENIZER_FILE)}, {vocabulary} pieces")
    print(
        f"to use it        --config.data.{side}={shlex.quote(made.folder)} --config.model.vocab_size={vocabulary} (or more)"
    )


def main() -> None:
    """Prepares a corpus."""
    options = arguments()
    if options.corpus.startswith(LISTOPS):
        make_listops(options)
        return
    chosen = selection.Selection(options.heldout_share, options.side)
    chosen.check()
    if options.train_tokenizer_only and files.exists(options.out):
        cli.fail(f"--out={options.out} is there already, and would be overwritten: give another name, or move it away")
    corpus = corpora.open_corpus(options.corpus, options.split)
    tokenizer = find_tokenizer(options, corpus, chosen)
    if options.train_tokenizer_only:
        tokenizer.save(options.out)
        print(f"tokenizer        {options.out}, {tokenizer.vocab_size} pieces")
        return
    began = time.perf_counter()
    made = prepare.prepare(
        corpus,
        tokenizer,
        options.out,
        selection=chosen,
        workers=options.workers,
        max_bad_records=options.max_bad_records,
        shard_bytes=options.shard_bytes,
    )
    report(made, time.perf_counter() - began, options.side)


def run() -> None:
    """The command line."""
    cli.explained(main)
