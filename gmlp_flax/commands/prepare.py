"""Tokenises a corpus once, on all cores, into a folder that training reads; trains the tokenizer if
none is given.

    gmlp prepare corpus.jsonl.xz --out=tokens/books --vocab_size=8000
    gmlp prepare CORPUS --out=DIR --tokenizer=FILE
    gmlp prepare listops:paper --out=lra/listops

CORPUS is a file or folder of text, JSON lines or parquet (also compressed, also gs://), a folder
prepared by TFDS, or tfds:NAME. DIR may be gs://BUCKET/FOLDER. If it is killed, the same command
goes on where it was, and the result is the same, byte for byte. Training takes the folder as
--config.data.train=DIR. listops:paper and listops:TRAIN,VALIDATION,TEST, three numbers of trees,
make Long Range Arena's ListOps for --config=lra_listops.
"""

import itertools
import os
import shlex
import time
from typing import Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.data import listops, splits
from gmlp_flax.data.listops import Grammar
from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.data.text import prepare
from gmlp_flax.data.text.corpora import Selection, describe, open_side
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.tokenizer import DOCUMENTS, TOKENIZER_FILE, Tokenizer, report_unknown
from gmlp_flax.data.text.word_piece import KEYS
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import cache
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.io.records import BadRecords

LISTOPS = "listops:"  # what its name begins with
_GRAMMAR = Grammar()

# Flag -> default, meaning and, of a whole number, least value.
FLAGS: dict[str, tuple] = {
    "split": ("", "A split, or all; empty: train, if the corpus has splits."),
    "tokenizer": (
        "",
        "A SentencePiece model, or BERT's vocab.txt or tokenizer.json; empty: train one.",
    ),
    **{key: ("auto", f"With --tokenizer: {comment}.") for key, comment in KEYS.items()},
    "vocab_size": (32_000, "Pieces of a tokenizer that is trained.", 1),
    "heldout_share": (0.0, "Share of documents to hold out."),
    "side": ("train", "train or heldout: the documents to take if some are held out."),
    "workers": (usable_cores(), "Cores to use.", 1),
    "max_bad_records": (0, "Skip so many records that do not parse.", 0),
    "shard_bytes": (prepare.SHARD_BYTES, "Bytes of the corpus in a shard.", 1),
    "cache": ("", "Folder for trained tokenizers; empty: ~/.cache/gmlp_flax."),
    "seed": (0, "Of listops:SIZE: decides all trees.", 0),
    "lengths": (
        f"{_GRAMMAR.shortest},{_GRAMMAR.longest}",
        "Of listops:SIZE: a tree's symbols are between these.",
    ),
    "depth": (_GRAMMAR.depth, "Of listops:SIZE: levels of a tree, at most.", 0),
}


def make_listops(name: str, values: flags.FlagValues) -> None:
    """Makes the data set ListOps, and prints how to train on it.

    Raises:
        DataError: the size or a flag makes no sense, or as in `listops.make`.
    """
    given = name.removeprefix(LISTOPS)
    sizes = (
        listops.PUBLISHED
        if given == "paper"
        else listops.parse_numbers(given, name, len(listops.FILES))
    )
    shortest, longest = listops.parse_numbers(values.lengths, f"--lengths={values.lengths}", 2)
    with cli.waiting("making trees"):
        most = listops.make(
            values.out, sizes, Grammar(shortest, longest, values.depth), values.seed
        )
    print(
        f"trees         {', '.join(f'{split} {size:,}' for split, size in zip(listops.FILES, sizes, strict=True))}"
    )
    print(f"to use it     --config=lra_listops --config.data.train={shlex.quote(values.out)}")
    print(f"              with --config.model.length={most + 2} or more, no tree is cut")


def report(made: Prepared, seconds: float, side: str) -> None:
    """Prints the size of the result, and how to train on it."""
    shards, vocabulary = len(made.index["shards"]), made.tokenizer.vocab_size
    print(f"documents        {made.documents:,}")
    print(
        f"tokens           {made.tokens:,} ({made.tokens / max(seconds, 1e-9):,.0f} per second, this time)"
    )
    print(f"shards           {shards}, in {made.folder}")
    print(f"skipped records  {made.skipped}")
    for message in made.skipped_first[:5]:
        print(f"                 {message}")
    print(f"tokenizer        {os.path.join(made.folder, TOKENIZER_FILE)}, {vocabulary} pieces")
    use = f"--config.data.{side}={shlex.quote(made.folder)} --config.model.vocab_size={vocabulary} (or more)"
    print(f"to use it        {use}")


def main(argv: list[str]) -> None:
    """Prepares a corpus. Raises ConfigError if a flag is missing or does not count."""
    values, name = flags.FLAGS, argv[1]
    cli.require("out")
    if name.startswith(LISTOPS):
        make_listops(name, values)
        return
    if values.side not in splits.SIDES:
        raise ConfigError(f"--side={values.side}: expected one of {', '.join(splits.SIDES)}")
    if not 0 <= values.heldout_share < 1 or (
        values.side == splits.HELDOUT and not values.heldout_share
    ):
        raise ConfigError(
            f"--heldout_share={values.heldout_share}: expected a share, 0.05 for 5 % of the documents"
        )
    selection = Selection(values.heldout_share, values.side)
    corpus, _ = open_side(name, splits.Side("train", values.split))
    to_stderr(describe({"read": corpus}, values.heldout_share))
    if values.tokenizer:
        tokenizer = Tokenizer.load(
            values.tokenizer, **{key: str(values[key].value) for key in KEYS}
        )
        if tokenizer.note:
            to_stderr(tokenizer.note)
        documents = selection.pick(
            corpus.documents(BadRecords(values.max_bad_records)), whole=len(corpus.parts) == 1
        )
        texts = [text[: prepare.PIECE] for text in itertools.islice(documents, DOCUMENTS)]
        report_unknown(
            tokenizer, [{"tokens": ids} for ids in tokenizer.encode_batch(texts)], corpus.name
        )
    else:
        train = {
            "selection": selection._replace(side="train"),
            "max_bad_records": values.max_bad_records,
        }
        folder = values.cache or cache.default_folder()
        tokenizer = prepare.cached_tokenizer(corpus, values.vocab_size, folder, **train)
    began = time.perf_counter()
    limits: dict[str, Any] = {
        limit: values[limit].value for limit in ("workers", "max_bad_records", "shard_bytes")
    }
    made = prepare.prepare(corpus, tokenizer, values.out, selection=selection, **limits)
    report(made, time.perf_counter() - began, values.side)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("out", None, "Folder for the result.")
    for name, definition in FLAGS.items():
        cli.define(name, *definition)
    cli.run(main, "CORPUS")
