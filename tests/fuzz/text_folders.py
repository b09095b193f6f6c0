"""Random folder trees of texts under random names: each side has the documents that an oracle says,
or both refuse."""

import gzip
import itertools
import shutil
import unicodedata
import zlib

import pyarrow as pa

from gmlp_flax.data.splits import Side
from gmlp_flax.data.text.corpora import open_side
from gmlp_flax.errors import DataError
from tests.data import writers

SPLITS, NEUTRAL, ALL = slice(0, 11), slice(13, None), slice(None)
WORDS = [
    *"train Training TRAIN val valid Validation dev test Testing TEST testset trainval held-out".split()
]
WORDS += [
    *"latest contest trains devs wiki en part data 01 2 a09b été \u00e9 Data books evaluated interval".split()
]
JOINTS = ("-", "_", ".", " ", "", "-2-", "__")
MEANING = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "devtest": "test",
}
MEANING |= dict.fromkeys(("val", "valid", "validation", "dev"), "heldout")
SHARE = 0.3


def make(folder):
    def check(rng):
        root = folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        tree = _tree(rng)
        for path, texts in tree.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            _write(root / path, texts)
        found = {}
        try:
            for side in ("train", "heldout"):
                corpus, selection = open_side(str(root), Side(side, heldout_share=SHARE))
                found[side] = sorted(selection.pick(corpus.documents(), whole=False))
        except DataError:
            found = {}
        expected = oracle(tree)
        assert found == expected, f"{found}\n{expected}\n{list(tree)}"
        if not found:
            raise DataError("refused, as it should be")

    return check


def oracle(tree):
    """Side -> its documents, sorted; {} if the tree must be refused."""
    texts = {
        path: docs for path, docs in tree.items() if not path.endswith((".md", ".csv", ".png"))
    }
    folders = [path.split("/")[:-1] for path in texts]
    around = sum(
        1
        for _ in itertools.takewhile(
            lambda names: len(set(names)) == 1, zip(*folders, strict=False)
        )
    )
    groups = {}
    for path in sorted(texts, key=lambda path: path.split("/")):
        *names, last = path.split("/")
        for suffix in (".gz", ".txt", ".jsonl", ".parquet", ".arrow"):
            last = last.removesuffix(suffix)
        read = [found for name in [last, *names[around:][::-1]] if (found := _mentioned(name))]
        common = set.intersection(*map(set, read)) if read else {""}
        if len(common) != 1:
            return {}
        meaning = common.pop()
        groups.setdefault((meaning, read[0][meaning] if read else ""), []).extend(texts[path])
    meanings, pooled = [meaning for meaning, _ in groups], sum(groups.values(), [])
    if ("" in meanings and set(meanings) - {"", "train"}) or (
        "train" not in meanings and len(groups) > 1
    ):
        return {}
    first = {meaning: docs for (meaning, _), docs in reversed(groups.items())}
    train = first["train"] if "train" in first and "" not in meanings else pooled
    if "train" in first and "heldout" in first:
        return {"train": sorted(train), "heldout": sorted(first["heldout"])}
    heldout = [text for text in train if zlib.crc32(text.encode()) < SHARE * 2**32]
    return {"train": sorted(set(train) - set(heldout)), "heldout": sorted(heldout)}


def _mentioned(name):
    """Split -> the first word for it in a name, by walking over its letters."""
    name, found, word = (
        unicodedata.normalize("NFC", name).replace("held-out", "heldout") + " ",
        {},
        "",
    )
    for here, after in itertools.pairwise(name):
        word += here if here.isalpha() else ""
        if not after.isalpha() or ("a" <= here <= "z" and "A" <= after <= "Z"):
            word = word.lower()
            word = word[:-3] if word.endswith("set") else word.removesuffix("data")
            for part in ("train", "val") if word == "trainval" else (word,):
                if meaning := (MEANING | {"heldout": "heldout"}).get(part):
                    found.setdefault(meaning, part)
            word = ""
    return found


def _tree(rng):
    """Path -> documents, of a few files in a few folders."""

    tidy = rng.random() < 0.5  # one word of a split in each file's name, none in folders' names

    def name(splits, most):
        words = [rng.choice(WORDS[splits]) for _ in range(rng.randint(1, most))]
        words += [rng.choice(WORDS[NEUTRAL])] if tidy and splits == SPLITS else []
        rng.shuffle(words)
        return unicodedata.normalize(
            rng.choice(("NFC", "NFD")), rng.choice(JOINTS[:2] if tidy else JOINTS).join(words)
        )

    kinds, most = (NEUTRAL, 1) if tidy else (ALL, 3)
    folders = [
        "/".join(name(kinds, most) for _ in range(rng.choice((0, 0, 1, 1, 2))))
        for _ in range(rng.randint(1, 3))
    ]
    tree = {}
    for number in range(rng.randint(1, 6)):
        suffix = rng.choice(
            (".txt", ".jsonl", ".jsonl.gz", ".parquet", ".arrow", ".md", ".csv", ".png")
        )
        path = f"{rng.choice(folders)}/{name(SPLITS if tidy else ALL, most)}{suffix}".lstrip("/")
        count = 1 if suffix == ".txt" else rng.randint(1, 4)
        tree[path] = [f"document {number} {i} of {rng.random()}" for i in range(count)]
    return tree if any(not path.endswith((".md", ".csv", ".png")) for path in tree) else _tree(rng)


def _write(path, texts):
    lines = writers.json_lines(*({"text": text} for text in texts))
    match path.suffix:
        case ".jsonl":
            path.write_bytes(lines)
        case ".gz":
            path.write_bytes(gzip.compress(lines))
        case ".parquet":
            writers.parquet(path, text=texts)
        case ".arrow":
            table = pa.table({"text": texts})
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
        case _:
            path.write_text(texts[0])
