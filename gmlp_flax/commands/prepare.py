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
from gmlp_flax.data.text import corpora, prepare, tokenizer_training
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.selection import Selection
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.io import cache, files

LISTOPS = "listops:"  # what its name begins with
_GRAMMAR = Grammar()
_CORES = os.cpu_count() or 1
_SAMPLE = tokenizer_training.SAMPLE

# Flag -> default, least value (of a number) and meaning.
FLAGS = {
    "split": ("", None, "a split, such as train, if the corpus has splits; default: all"),
    "tokenizer": ("", None, "a SentencePiece model or BERT's vocab.txt; default: train one"),
    "vocab_size": (32_000, 1, "pieces of a tokenizer that is trained (32000)"),
    "tokenizer_sample": (_SAMPLE, 1, f"characters to train a tokenizer on, at most, from all parts ({_SAMPLE})"),
    "heldout_share": (0.0, None, "share of documents to hold out (0)"),
    "side": ("train", None, "train or heldout: the documents to take if some are held out"),
    "workers": (_CORES, 1, "cores to use (all)"),
    "max_bad_records": (0, 0, "skip so many records that do not parse (0)"),
    "shard_bytes": (prepare.SHARD_BYTES, 1, f"bytes of the corpus in a shard ({prepare.SHARD_BYTES})"),
    "cache": ("", None, "folder for trained tokenizers (~/.cache/gmlp_flax)"),
}
LISTOPS_FLAGS = {
    "seed": (0, 0, "decides all trees (0)"),
    "lengths": (
        f"{_GRAMMAR.shortest},{_GRAMMAR.longest}",
        None,
        "a tree has more symbols than the first number and fewer than the second (%(default)s)",
    ),
    "depth": (_GRAMMAR.depth, None, "levels of a tree, at most (%(default)s)"),
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.ArgumentParser("prepare", __doc__)
    parser.add_argument("corpus", metavar="CORPUS", help="the text to tokenise; or listops:SIZE")
    parser.add_argument("--out", required=True, help="folder for the result; with --train_tokenizer_only, the file")
    parser.add_argument("--train_tokenizer_only", action="store_true", help="write the tokenizer to --out and end")
    for title, flags in (("of a corpus", FLAGS), ("of listops:SIZE alone", LISTOPS_FLAGS)):
        group = parser.add_argument_group(title)
        for name, (default, _, meaning) in flags.items():
            group.add_argument(f"--{name}", type=type(default), default=default, help=meaning)
    options = parser.parse_args()
    is_listops = options.corpus.startswith(LISTOPS)
    for name in {**FLAGS, "train_tokenizer_only": ()} if is_listops else LISTOPS_FLAGS:
        if getattr(options, name) != parser.get_default(name):
            what = f"is not a flag of {LISTOPS}SIZE" if is_listops else f"is a flag of {LISTOPS}SIZE alone"
            cli.fail(f"--{name} {what}: leave it out")
    for name, (_, least, _) in (FLAGS | LISTOPS_FLAGS).items():
        if least is not None and not least <= getattr(options, name) < 2**31:
            cli.fail(f"--{name}={getattr(options, name)}: expected a number from {least} to 2,147,483,647")
    if not is_listops:
        corpus, out = (
            path if files.is_remote(path) else os.path.realpath(path) for path in (options.corpus, options.out)
        )
        if f"{out.rstrip('/')}/".startswith(f"{corpus.rstrip('/')}/"):
            cli.fail(f"--out={options.out} lies in the corpus, which would grow by it; give a folder beside it")
    return options


def make_listops(options: argparse.Namespace) -> None:
    """Makes the data set ListOps and prints its statistics.

    Raises:
        DataError: the size or a flag makes no sense, or as in `listops.folder.make`.
    """
    sizes = folder.parse_sizes(options.corpus.removeprefix(LISTOPS))
    shortest, longest = folder.parse_numbers(options.lengths, f"--lengths={options.lengths}", 2)
    out = options.out if files.is_remote(options.out) else os.path.realpath(options.out)
    report_listops(folder.make(out, sizes, Grammar(shortest, longest, options.depth), options.seed), out)


def report_listops(statistics: Mapping[str, Mapping[str, Any]], out: str) -> None:
    """Prints the statistics of each split, and how to train on them."""
    print(f"{'split':<12}{'trees':>8}  {'symbols':<26}{'depth':<24}share of the values 0 to 9, %")
    for name, split in statistics.items():
        (shortest, length, longest), (lowest, depth, deepest) = split["length"], split["depth"]
        lengths, depths = f"{shortest} to {longest}, mean {length:.0f}", f"{lowest} to {deepest}, mean {depth:.2f}"
        shares = " ".join(f"{100 * share:.1f}" for share in split["values"])
        print(f"{name:<12}{split['trees']:>8,}  {lengths:<26}{depths:<24}{shares}")
    most = max(split["length"][2] for split in statistics.values())
    print(f"to use it     --config=lra_listops --config.data.train={shlex.quote(out)}")
    print(f"              with --config.model.length={most + 2} or more, no tree is cut")


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
    use = f"--config.data.{side}={shlex.quote(made.folder)} --config.model.vocab_size={vocabulary} (or more)"
    print(f"to use it        {use}")


def main() -> None:
    """Prepares a corpus."""
    options = arguments()
    if options.corpus.startswith(LISTOPS):
        make_listops(options)
        return
    selection = Selection(options.heldout_share, options.side)
    selection.check()
    if options.train_tokenizer_only and files.exists(options.out):
        cli.fail(f"--out={options.out} is there already, and would be overwritten: give another name, or move it away")
    corpus = corpora.open_corpus(options.corpus, options.split)
    if options.tokenizer:
        tokenizer = Tokenizer.load(options.tokenizer)
    else:
        tokenizer = tokenizer_training.cached_tokenizer(
            corpus,
            options.vocab_size,
            options.cache or cache.default_folder(),
            selection=selection._replace(side="train"),
            sample=options.tokenizer_sample,
            max_bad_records=options.max_bad_records,
        )
    if options.train_tokenizer_only:
        tokenizer.save(options.out)
        print(f"tokenizer        {options.out}, {tokenizer.vocab_size} pieces")
        return
    began = time.perf_counter()
    limits = {name: getattr(options, name) for name in ("workers", "max_bad_records", "shard_bytes")}
    made = prepare.prepare(corpus, tokenizer, options.out, selection=selection, **limits)
    report(made, time.perf_counter() - began, options.side)


def run() -> None:
    """The command line."""
    cli.explained(main)
