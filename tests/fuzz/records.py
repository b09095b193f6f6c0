"""Archives, records and tables of data sets: tar, npz, safetensors, TFRecord, ArrayRecord, parquet,
TFDS's metadata, JSON and TSV."""

import contextlib
import gzip
import io
import itertools
import json
import lzma
import random
import shutil
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.numpy

from gmlp_flax.data import splits
from gmlp_flax.data.finetuning.text_tasks import CLASS_TASKS, NUMBER_TASKS, TextTask, custom_task
from gmlp_flax.data.holdout import ROLES, TRAIN
from gmlp_flax.data.images.real_labels import with_real_labels
from gmlp_flax.data.readers import images, labelled_text, squad, text, text_benchmarks
from gmlp_flax.data.splits import Request
from gmlp_flax.io import weight_files
from gmlp_flax.io.records import BadRecord, BadRecords
from tests.data import writers
from tests.data.finetuning import squad_files
from tests.data.images import image_files
from tests.fuzz.damage import damaged, damaged_json, one_of

Random = random.Random
Check = Callable[[Random], None]

ROWS = [{"text": f"line {i}, one two three", "url": "x", "n": i} for i in range(20)]
LINES = [json.dumps(row).encode() for row in ROWS]
IMAGES = {
    f"{kind}/{number}.png": image_files.png(number)
    for kind in ("cat", "dog")
    for number in range(4)
}
SPLIT = ("train", "dev")
ROLE_SHARE = 0.3


def make(folder: Path) -> Check:
    checks = [
        _tars(folder),
        _safetensors(folder),
        _arrays(folder),
        _real_labels(folder),
        _pathfinder(folder),
        _parquet(folder),
        *_questions(folder),
        *_benchmarks(folder),
        *_labelled_texts(folder),
    ]
    for kind in ("jsonl", "txt", "jsonl.gz", "jsonl.xz"):
        checks.append(_corpora(folder, kind))
    for file_format in ("tfrecord", "array_record", "parquet"):
        checks.append(_tfds(folder, file_format, "text", _read_text))
    for file_format in ("tfrecord", "array_record"):
        checks.append(_tfds(folder, file_format, "images", _read_images))
    for suffix in ("parquet", "arrow", "npz", "csv"):
        checks.append(_image_rows(folder, suffix))
    return one_of(checks)


def _file(
    path: Path, write: Callable[[Random], bytes], read: Callable[[str, Random], Any]
) -> Check:
    """An input is what `write` gives, in a file."""

    def check(rng: Random) -> None:
        path.write_bytes(write(rng))
        read(str(path), rng)

    return check


def _damaged_file(path: Path, content: bytes, read: Callable[[str, Random], Any]) -> Check:
    """An input is the content of a file, damaged."""
    return _file(path, partial(damaged, content), read)


def _damaged_rows(
    path: Path, rows: list[dict], share: float, read: Callable[[str, Random], Any]
) -> Check:
    """An input is JSON lines, each damaged with a probability of `share`."""

    def write(rng: Random) -> bytes:
        return _some_damaged(rows, share, rng)

    return _file(path, write, read)


def _read_text(path: str | Path, rng: Random | None = None) -> None:
    bad = BadRecords(5)
    for dataset in text.read(str(path)).values():
        documents = dataset.examples.read(bad)
        for document in itertools.islice(documents, 100):
            document.encode("utf-8", "replace")


def _read_images(path: str | Path, rng: Random | None = None) -> None:
    found = images.read(str(path), f"{path}-cache")
    for role in ROLES:
        request = Request(role, heldout_share=ROLE_SHARE)
        dataset = splits.choose(found, request)
        count = min(len(dataset), 20)
        for index in range(count):
            with contextlib.suppress(BadRecord):
                example = dataset.examples[index]
                example["name"].encode("utf-8", "replace")


def _read_rows(path: str, rng: Random, task: TextTask, read: Callable) -> None:
    """Reads labelled text as one of the roles, and checks every row."""
    bad = BadRecords(rng.choice((0, 5)))
    found = read(path, task, bad)
    request = Request(rng.choice(ROLES), heldout_share=ROLE_SHARE)
    dataset = splits.choose(found, request)
    rows = dataset.examples.rows
    count = len(dataset.examples)
    assert count == len(dataset.labels) > 0
    assert dataset.fingerprint
    for row in rows:
        assert len(row.texts) == len(task.texts)
        for cell in row.texts:
            assert cell == cell.strip() != ""


def _read_questions(path: str, rng: Random) -> None:
    version = rng.choice(("v1.1", "v2.0"))
    bad = BadRecords(rng.choice((0, 5)))
    found = squad.read(path, version, bad)
    dataset = splits.choose(found, Request(TRAIN))
    for question in dataset.examples.questions:
        for answer, start in question.answers:
            assert question.context[start:].startswith(answer)


def _some_damaged(rows: list[dict], share: float, rng: Random) -> bytes:
    """JSON lines; each is damaged with a probability of `share`."""
    lines = []
    for row in rows:
        is_damaged = rng.random() < share
        line = damaged_json(row, rng) if is_damaged else json.dumps(row).encode()
        lines.append(line)
    return b"\n".join(lines)


def _tar(form: int) -> bytes:
    """A tar file of images, with long names where the form has them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, image in IMAGES.items():
            member = tarfile.TarInfo(name)
            member.size = len(image)
            if form != tarfile.USTAR_FORMAT:
                long_folder = f"/{'long/' * 30}"
                member.name = name.replace("/", long_folder)
            if form == tarfile.PAX_FORMAT:
                member.pax_headers = {"mtime": "1.5", "comment": "é", "uname": "x" * 50}
            tar.addfile(member, io.BytesIO(image))
    return file.getvalue()


def _tars(folder: Path) -> Check:
    forms = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
    bases = [_tar(form) for form in forms]

    def write(rng: Random) -> bytes:
        data = rng.choice(bases)
        if rng.random() < 0.5:
            return damaged(data, rng)
        # Headers are a small share of the bytes.
        start = rng.randrange(0, len(data), 512)
        stop = start + 1024
        middle = damaged(data[start:stop], rng)
        before = data[:start]
        return before + middle + data[stop:]

    return _file(folder / "images.tar", write, _read_images)


def _image_rows(folder: Path, suffix: str) -> Check:
    """Six images of three classes in one file."""
    path = folder / f"rows.{suffix}"
    labels = [0, 1, 2] * 2
    encoded = []
    for i in range(6):
        encoded.append({"bytes": image_files.png(i), "path": "x"})
    table = pyarrow.table({"image": encoded, "label": labels})
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif suffix == "arrow":
        writers.arrow(path, table)
    elif suffix == "npz":
        np.savez(path, images=np.zeros((6, 4, 4), np.uint8), labels=labels)
    else:
        content = {}
        lines = ["file_name,label\n"]
        for i, label in enumerate(labels):
            content[f"rows/{i}.png"] = image_files.png(i)
            lines.append(f"rows/{i}.png,{label}\n")
        image_files.make_folder(folder, content)
        path.write_text("".join(lines))
    return _damaged_file(path, path.read_bytes(), _read_images)


def _safetensors(folder: Path) -> Check:
    arrays = {
        "a": np.ones((2, 3), np.float32),
        "b": np.arange(5),
        "c": np.zeros(0, np.float16),
    }
    whole = safetensors.numpy.save(arrays)
    header_size = int.from_bytes(whole[:8], "little")
    header_end = 8 + header_size
    header = json.loads(whole[8:header_end])
    content = whole[header_end:]

    def write(rng: Random) -> bytes:
        if rng.random() < 0.4:
            return damaged(whole, rng)
        changed = damaged_json(header, rng)
        size = len(changed).to_bytes(8, "little")
        return size + changed + content

    return _file(folder / "x.safetensors", write, _read_weights)


def _arrays(folder: Path) -> Check:
    kernel = np.ones((2, 3), np.float32)
    arrays = {"head/kernel": kernel, "b": np.arange(5)}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return _damaged_file(folder / "x.npz", file.getvalue(), _read_weights)


def _read_weights(path: str, rng: Random) -> None:
    for array in weight_files.read(path).values():
        array.sum()


def _questions(folder: Path) -> list[Check]:
    """SQuAD's official form, and the same questions as rows."""
    answered = squad_files.colours(0)
    impossible = squad_files.colours(1, impossible=True)
    articles = [answered, impossible]
    path = squad_files.write(folder / "squad.json", *articles)
    rows = []
    for question in squad_files.read(path, "v2.0"):
        texts = [answer for answer, _ in question.answers]
        starts = [start for _, start in question.answers]
        answers = {"text": texts, "answer_start": starts}
        rows.append(question._asdict() | {"answers": answers})
    table = writers.table(folder / "squad.parquet", rows)
    return [
        _file(path, partial(damaged_json, {"data": articles}), _read_questions),
        _damaged_rows(folder / "squad.jsonl", rows, 0.1, _read_questions),
        _damaged_file(table, table.read_bytes(), _read_questions),
    ]


def _benchmark(path: Path, task: TextTask, lines: list[str]) -> Check:
    content = "\n".join(lines).encode()
    read = partial(_read_rows, task=task, read=text_benchmarks.read)
    return _damaged_file(path, content, read)


def _benchmarks(folder: Path) -> list[Check]:
    """Published tables of each kind."""
    sst2 = CLASS_TASKS["sst2"]
    sentences = []
    for i in range(6):
        sentences.append({"sentence": f"words {i}", "label": i % 2})
    read = partial(_read_rows, task=sst2, read=text_benchmarks.read)
    checks = [_damaged_rows(folder / "train.jsonl", sentences, 0.3, read)]
    tables = {
        "sst2": ["sentence\tlabel"],
        "cola": [],
        "listops": ["Source\tTarget"],
        "retrieval": [],
        "stsb": ["index\tsentence1\tsentence2\tscore"],
    }
    for i in range(10):
        label = i % 2
        tables["sst2"].append(f"words {i} é\t{label}")
        tables["cola"].append(f"gj04\t{label}\t*\twords {i}.")
        tables["listops"].append(f"( [MAX {i} ) 5 ) ] )\t{max(i, 5)}")
        tables["retrieval"].append(f"{label}.0\tP{i}\tQ{i}\tfirst {i} \\xe9\tsecond é")
        tables["stsb"].append(f"{i}\ta {i}\tb\t{i / 2}")
    for name, lines in tables.items():
        task = (CLASS_TASKS | NUMBER_TASKS)[name]
        path = folder / f"{name}.train.tsv"
        checks.append(_benchmark(path, task, lines))
    return checks


def _labelled_texts(folder: Path) -> list[Check]:
    """Rows of a user's data in each format."""
    rows = []
    lines = ["text,label,split\n"]
    for i in range(12):
        sentence = f"said, {i} é"
        label = "xyz"[i % 3]
        split = SPLIT[i % 2]
        rows.append({"text": sentence, "label": label, "split": split})
        lines.append(f'"{sentence}",{label},{split}\n')
    task = custom_task(("text",), "label")
    read = partial(_read_rows, task=task, read=labelled_text.read)
    content = "".join(lines).encode()
    with_tabs = content.replace(b",", b"\t")
    checks = [
        _damaged_file(folder / "own.csv", content, read),
        _damaged_file(folder / "own.tsv", with_tabs, read),
        _damaged_rows(folder / "own.jsonl", rows, 0.2, read),
    ]
    for suffix in ("parquet", "arrow"):
        path = writers.table(folder / f"own.{suffix}", rows)
        checks.append(_damaged_file(path, path.read_bytes(), read))
    packed = gzip.compress(content)
    checks.append(_damaged_file(folder / "own.csv.gz", packed, read))
    return checks


def _pathfinder(folder: Path) -> Check:
    lines = b""
    content = {}
    for i in range(8):
        label = i % 2
        lines += f"imgs/0 sample_{i}.png {i} {label} 1 14 0.75\n".encode()
        content[f"imgs/0/sample_{i}.png"] = image_files.png(i)
    content["metadata/0.npy"] = lines
    path = image_files.make_folder(folder / "paths", content)
    write = partial(damaged, lines)
    return _file(path / "metadata" / "0.npy", write, lambda _, rng: _read_images(path))


def _real_labels(folder: Path) -> Check:
    content = {}
    for i in range(8):
        class_folder = "ab"[i % 2]
        name = f"{class_folder}/ILSVRC2012_val_{i + 1:08}.png"
        content[name] = image_files.png(i)
    root = image_files.make_folder(folder / "real", content)
    dataset = images.read(str(root))[""]

    def read(path: str, rng: Random) -> None:
        examples = with_real_labels(dataset, path).examples
        for index in range(len(examples)):
            real = examples[index]["real"]
            assert real.dtype == np.int32

    labels = [[0], [1]] * 4
    return _file(folder / "real.json", partial(damaged_json, labels), read)


def _corpora(folder: Path, kind: str) -> Check:
    packers = {"gz": gzip.compress, "xz": lzma.compress}
    suffix = kind.rpartition(".")[2]
    pack = packers.get(suffix, bytes)
    data = b"\n".join(LINES)

    def write(rng: Random) -> bytes:
        is_inner = rng.random() < 0.5
        if kind == "jsonl" and is_inner:
            return _some_damaged(ROWS, 0.2, rng)
        if is_inner:
            return pack(damaged(data, rng))
        return damaged(pack(data), rng)

    return _file(folder / f"corpus.{kind}", write, _read_text)


def _parquet(folder: Path) -> Check:
    numbers = list(range(20))
    texts = [f"line {i}" for i in numbers]
    path = writers.parquet(folder / "table.parquet", 4, text=texts, n=numbers)
    return _damaged_file(path, path.read_bytes(), _read_text)


def _tfds(folder: Path, file_format: str, kind: str, read: Callable[[Path], None]) -> Check:
    """A TFDS folder with one file damaged."""
    kind_folder = folder / f"{kind}-{file_format}"
    whole = kind_folder / "1.0.0"
    path = folder / f"{kind}-{file_format}-damaged"
    if kind == "text":
        shards = []
        for name in "ab":
            lines = []
            for i in range(9):
                lines.append(f"line {i}{name}")
            shard = []
            for line in lines:
                shard.append(writers.example(text=line.encode()))
            shards.append(shard)
        writers.tfds_folder(whole, {"train": shards}, file_format)
    else:
        image_files.tfds_folder(whole, {"train": [9, 8], "test": [3]}, file_format)
    names = sorted(file.name for file in whole.iterdir())

    def check(rng: Random) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        name = rng.choice(names)
        data = (whole / name).read_bytes()
        if name.endswith(".json") and rng.random() < 0.7:
            content = damaged_json(json.loads(data), rng)
        else:
            content = damaged(data, rng)
        (path / name).write_bytes(content)
        read(path)

    return check
