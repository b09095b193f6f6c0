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

import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.data.listops import folder
from gmlp_flax.data.listops.trees import Grammar
from gmlp_flax.data.text import corpora, prepare, tokenizer_training
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.selection import Selection
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import cache, files

LISTOPS = "listops:"  # what its name begins with
_GRAMMAR = Grammar()
_CORES = os.cpu_count() or 1
_SAMPLE = tokenizer_training.SAMPLE

# Flag -> default, least value (of a whole number) and meaning.
CORPUS_FLAGS: dict[str, tuple[Any, int | None, str]] = {
    "split": ("", None, "A split, such as train, if the corpus has splits; empty: all."),
    "tokenizer": ("", None, "A SentencePiece model or BERT's vocab.txt; empty: train one."),
    "vocab_size": (32_000, 1, "Pieces of a tokenizer that is trained."),
    "tokenizer_sample": (_SAMPLE, 1, "Characters to train a tokenizer on, at most, from all parts."),
    "train_tokenizer_only": (False, None, "Write the tokenizer to --out and end."),
    "heldout_share": (0.0, None, "Share of documents to hold out."),
    "side": ("train", None, "train or heldout: the documents to take if some are held out."),
    "workers": (_CORES, 1, "Cores to use."),
    "max_bad_records": (0, 0, "Skip so many records that do not parse."),
    "shard_bytes": (prepare.SHARD_BYTES, 1, "Bytes of the corpus in a shard."),
    "cache": ("", None, "Folder for trained tokenizers; empty: ~/.cache/gmlp_flax."),
}
LISTOPS_FLAGS: dict[str, tuple[Any, int | None, str]] = {
    "seed": (0, 0, "Of listops:SIZE: decides all trees."),
    "lengths": (
        f"{_GRAMMAR.shortest},{_GRAMMAR.longest}",
        None,
        "Of listops:SIZE: a tree has more symbols than the first number and fewer than the second.",
    ),
    "depth": (_GRAMMAR.depth, 0, "Of listops:SIZE: levels of a tree, at most."),
}


def check(name: str, values: flags.FlagValues) -> None:
    """Raises ConfigError if a flag is missing, does not count, or contradicts another."""
    if not values.out:
        raise ConfigError("--out is missing: give --out=DIR")
    is_listops = name.startswith(LISTOPS)
    if wrong := [flag for flag in (CORPUS_FLAGS if is_listops else LISTOPS_FLAGS) if values[flag].present]:
        what = f"is not a flag of {LISTOPS}SIZE" if is_listops else f"is a flag of {LISTOPS}SIZE alone"
        raise ConfigError(f"--{wrong[0]} {what}: leave it out")
    corpus, out = (path if files.is_remote(path) else os.path.realpath(path) for path in (name, values.out))
    if not is_listops and f"{out.rstrip('/')}/".startswith(f"{corpus.rstrip('/')}/"):
        raise ConfigError(f"--out={values.out} lies in the corpus, which would grow by it; give a folder beside it")
    if values.train_tokenizer_only and files.exists(values.out):
        raise ConfigError(
            f"--out={values.out} is there already, and would be overwritten: give another name, or move it away"
        )


def make_listops(name: str, values: flags.FlagValues) -> None:
    """Makes the data set ListOps and prints its statistics.

    Raises:
        DataError: the size or a flag makes no sense, or as in `listops.folder.make`.
    """
    sizes = folder.parse_sizes(name.removeprefix(LISTOPS))
    shortest, longest = folder.parse_numbers(values.lengths, f"--lengths={values.lengths}", 2)
    out = values.out if files.is_remote(values.out) else os.path.realpath(values.out)
    report_listops(folder.make(out, sizes, Grammar(shortest, longest, values.depth), values.seed), out)


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


def main(argv: list[str]) -> None:
    """Prepares a corpus."""
    values, name = flags.FLAGS, argv[1]
    check(name, values)
    if name.startswith(LISTOPS):
        make_listops(name, values)
        return
    selection = Selection(values.heldout_share, values.side)
    selection.check()
    corpus = corpora.open_corpus(name, values.split)
    if values.tokenizer:
        tokenizer = Tokenizer.load(values.tokenizer)
    else:
        tokenizer = tokenizer_training.cached_tokenizer(
            corpus,
            values.vocab_size,
            values.cache or cache.default_folder(),
            selection=selection._replace(side="train"),
            sample=values.tokenizer_sample,
            max_bad_records=values.max_bad_records,
        )
    if values.train_tokenizer_only:
        tokenizer.save(values.out)
        print(f"tokenizer        {values.out}, {tokenizer.vocab_size} pieces")
        return
    began = time.perf_counter()
    limits: dict[str, Any] = {limit: values[limit].value for limit in ("workers", "max_bad_records", "shard_bytes")}
    made = prepare.prepare(corpus, tokenizer, values.out, selection=selection, **limits)
    report(made, time.perf_counter() - began, values.side)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("out", None, "Folder for the result; with --train_tokenizer_only, the file.")
    for name, (default, least, meaning) in (CORPUS_FLAGS | LISTOPS_FLAGS).items():
        if least is not None:
            flags.DEFINE_integer(name, default, meaning, lower_bound=least, upper_bound=2**31 - 1)
        else:
            define: Any = {bool: flags.DEFINE_bool, float: flags.DEFINE_float, str: flags.DEFINE_string}[type(default)]
            define(name, default, meaning)
    cli.run(main, "CORPUS")
