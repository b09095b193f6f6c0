"""Archives, records and tables of data sets: tar, npz, safetensors, TFRecord, ArrayRecord, parquet,
TFDS's metadata, JSON and TSV."""

import gzip
import io
import itertools
import json
import lzma
import shutil
import tarfile
from functools import partial

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.numpy

from gmlp_flax.data.finetuning import sentences, squad
from gmlp_flax.data.finetuning.glue import GLUE_TASKS, LONG_RANGE_TASKS
from gmlp_flax.data.images import sources
from gmlp_flax.data.splits import Side
from gmlp_flax.data.text.corpora import open_corpus
from gmlp_flax.io import weight_files
from gmlp_flax.io.records import BadRecord, BadRecords
from tests.data import writers
from tests.data.finetuning import squad_files
from tests.data.images import image_files
from tests.fuzz.damage import damaged, damaged_json, one_of

ROWS = [json.dumps({"text": f"line {i}, one two three", "url": "x", "n": i}) for i in range(20)]
IMAGES = {
    f"{kind}/{number}.png": image_files.png(number)
    for kind in ("cat", "dog")
    for number in range(4)
}
LABELS = [[i % 2] for i in range(8)]


def make(folder):
    makers = (
        _tars,
        _safetensors,
        _arrays,
        _squad,
        _tsv,
        _json_lines,
        _listops,
        _retrieval,
        _real_labels,
        _pathfinder,
        _parquet,
    )
    checks = [maker(folder) for maker in makers]
    checks += [_corpora(folder, kind) for kind in ("jsonl", "txt", "jsonl.gz", "jsonl.xz")]
    checks += [
        _tfds(folder, kind, "text", _read_text) for kind in ("tfrecord", "array_record", "parquet")
    ]
    checks += [_tfds(folder, kind, "images", _read_images) for kind in ("tfrecord", "array_record")]
    checks += [_image_rows(folder, suffix) for suffix in ("parquet", "arrow", "npz", "csv")]
    return one_of(checks)


def _read_text(path):
    bad = BadRecords(5)
    corpus = open_corpus(str(path))
    for part in corpus.parts:
        for document in itertools.islice(part.documents(bad), 100):
            document.encode("utf-8", "replace")


def _read_images(path):
    for side in sources.SIDES:
        source = sources.open_side(
            str(path), Side(side, heldout_share=0.3), cache_folder=str(path) + "-cache"
        )
        for index in range(min(len(source), 20)):
            try:
                source[index]["name"].encode("utf-8", "replace")
            except BadRecord:
                continue


def _read_sentences(path, rng, task):
    bad = BadRecords(rng.choice((0, 5)))
    sentences.open_sentences(
        str(path), task, Side(rng.choice(sources.SIDES), heldout_share=0.3), bad
    )


def _some_damaged(rows, share, rng):
    return [
        damaged_json(row, rng) if rng.random() < share else json.dumps(row).encode() for row in rows
    ]


def _tars(folder):
    bases, forms = [], (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
    for kind, form in itertools.product(("", ":gz", ":xz", ":bz2"), forms):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode=f"w{kind}", format=form) as tar:
            for name, image in IMAGES.items():
                member = tarfile.TarInfo(
                    name if form == tarfile.USTAR_FORMAT else f"{'long/' * 30}{name}"
                )
                member.size = len(image)
                if form == tarfile.PAX_FORMAT:
                    member.pax_headers = {"mtime": "1.5", "comment": "é", "uname": "x" * 50}
                tar.addfile(member, io.BytesIO(image))
        bases.append((file.getvalue(), kind.replace(":", ".")))

    def check(rng):
        data, suffix = rng.choice(bases)
        if rng.random() < 0.5:  # headers are few of the bytes
            place = rng.randrange(0, len(data), 512) if suffix == "" else 0
            data = data[:place] + damaged(data[place : place + 1024], rng) + data[place + 1024 :]
        else:
            data = damaged(data, rng)
        path = folder / f"images.tar{suffix}"
        path.write_bytes(data)
        _read_images(path)

    return check


def _image_rows(folder, suffix):
    """Six images of three classes in one file."""
    path = folder / f"rows.{suffix}"
    images = [{"bytes": image_files.png(i), "path": "x"} for i in range(6)]
    table = pyarrow.table({"image": images, "label": [0, 1, 2] * 2})
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif suffix == "arrow":
        writers.arrow(path, table)
    elif suffix == "npz":
        np.savez(path, x=np.zeros((6, 4, 4), np.uint8), y=[0, 1, 2] * 2)
    else:
        image_files.make_folder(folder, {f"rows/{i}.png": image_files.png(i) for i in range(6)})
        path.write_text("file,label\n" + "".join(f"rows/{i}.png,{i % 3}\n" for i in range(6)))
    whole = path.read_bytes()
    return _file(path, partial(damaged, whole), lambda *_: _read_images(path))


def _file(path, write, read):
    """An input is what `write` gives, in a file."""

    def check(rng):
        path.write_bytes(write(rng))
        read(str(path), rng)

    return check


def _safetensors(folder):
    base = safetensors.numpy.save(
        {"a": np.ones((2, 3), np.float32), "b": np.arange(5), "c": np.zeros(0, np.float16)}
    )
    size = 8 + int.from_bytes(base[:8], "little")
    header = json.loads(base[8:size])

    def write(rng):
        text = damaged_json(header, rng)
        odd = len(text).to_bytes(8, "little") + text + base[size:]
        return odd if rng.random() < 0.6 else damaged(base, rng)

    return _file(
        folder / "x.safetensors",
        write,
        lambda path, _: [a.sum() for a in weight_files.read(path).values()],
    )


def _arrays(folder):
    base = io.BytesIO()
    np.savez(base, **{"head/kernel": np.ones((2, 3), np.float32), "b": np.arange(5)})
    write = partial(damaged, base.getvalue())
    return _file(
        folder / "x.npz", write, lambda path, _: [a.sum() for a in weight_files.read(path).values()]
    )


def _squad(folder):
    value = {
        "data": [squad_files.colours(0), squad_files.colours(1, impossible=True)],
        "version": "v2.0",
    }

    def read(path, rng):
        squad.read_side(path, Side("train"), "v2.0")

    return _file(folder / "squad.json", partial(damaged_json, value), read)


def _sentences(path, task, text):
    return _file(path, partial(damaged, text.encode()), partial(_read_sentences, task=task))


def _tsv(folder):
    text = "sentence\tlabel\n" + "".join(f"words {i} é\t{i % 2}\n" for i in range(20))
    return _sentences(folder / "train.tsv", GLUE_TASKS["sst2"], text)


def _json_lines(folder):
    rows = [{"sentence": f"words {i}", "label": i % 2} for i in range(6)]
    read = partial(_read_sentences, task=GLUE_TASKS["sst2"])
    return _file(
        folder / "train.jsonl", lambda rng: b"\n".join(_some_damaged(rows, 0.3, rng)), read
    )


def _listops(folder):
    rows = ["Source\tTarget", *(f"( ( ( [MAX {i} ) 5 ) ] )\t{max(i, 5)}" for i in range(10))]
    return _sentences(folder / "listops.train.tsv", LONG_RANGE_TASKS["listops"], "\n".join(rows))


def _retrieval(folder):
    rows = [f"{i % 2}.0\tP{i}\tQ{i}\tfirst {i} \\xe9\tsecond é" for i in range(10)]
    return _sentences(
        folder / "retrieval.train.tsv", LONG_RANGE_TASKS["retrieval"], "\n".join(rows)
    )


def _pathfinder(folder):
    lines = "".join(f"imgs/0 sample_{i}.png {i} {i % 2} 1 14 0.75\n" for i in range(8)).encode()
    images = {f"imgs/0/sample_{i}.png": image_files.png(i) for i in range(8)}
    path = image_files.make_folder(folder / "paths", images | {"metadata/0.npy": lines})
    return _file(
        path / "metadata" / "0.npy", partial(damaged, lines), lambda *_: _read_images(path)
    )


def _real_labels(folder):
    names = {f"{'ab'[i % 2]}/ILSVRC2012_val_{i + 1:08}.png": image_files.png(i) for i in range(8)}
    source = sources.open_images(str(image_files.make_folder(folder / "real", names))).of_split()

    def read(path, _):
        labelled = sources.RealLabels(source, path)
        [labelled[index]["real"] for index in range(len(labelled))]

    return _file(folder / "real.json", partial(damaged_json, LABELS), read)


def _corpora(folder, kind):
    data = "\n".join(ROWS).encode()
    pack = {"gz": gzip.compress, "xz": lzma.compress}.get(kind.rpartition(".")[2], bytes)

    def check(rng):
        path = folder / f"corpus.{kind}"
        inner = rng.random() < 0.5
        path.write_bytes(pack(damaged(data, rng)) if inner else damaged(pack(data), rng))
        if kind == "jsonl" and inner:
            path.write_bytes(b"\n".join(_some_damaged(map(json.loads, ROWS), 0.2, rng)))
        _read_text(path)

    return check


def _parquet(folder):
    path = folder / "table.parquet"
    base = writers.parquet(
        path, 4, text=[f"line {i}" for i in range(20)], n=list(range(20))
    ).read_bytes()
    return _file(path, partial(damaged, base), lambda path, _: _read_text(path))


def _tfds(folder, file_format, kind, read):
    """A TFDS folder with one file damaged."""
    whole, path = (
        folder / f"{kind}-{file_format}" / "1.0.0",
        folder / f"{kind}-{file_format}-damaged",
    )
    if kind == "text":
        shards = {
            "train": [
                [writers.example(text=f"line {i}{s}".encode()) for i in range(9)] for s in "ab"
            ]
        }
        writers.tfds_folder(whole, shards, file_format)
    else:
        image_files.tfds_folder(whole, {"train": [9, 8], "test": [3]}, file_format)
    names = [file.name for file in whole.iterdir()]

    def check(rng):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        name = rng.choice(names)
        data = (whole / name).read_bytes()
        as_json = name.endswith(".json") and rng.random() < 0.7
        (path / name).write_bytes(
            damaged_json(json.loads(data), rng) if as_json else damaged(data, rng)
        )
        read(path)

    return check
