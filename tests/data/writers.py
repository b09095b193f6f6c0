"""Writers of the corpora that the tests read, independent of the code under test."""

import json
import secrets
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import fsspec
import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2


def json_lines(*records: object) -> bytes:
    """One JSON value per line."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def example(**features: bytes | int | list) -> bytes:
    """A serialised tf.train.Example of byte strings and integers, or of lists of them."""
    message = tf_example_pb2.Example()
    for name, value in features.items():
        feature = message.features.feature[name]
        values = value if isinstance(value, list) else [value]
        kind = (
            feature.int64_list if isinstance(next(iter(values), None), int) else feature.bytes_list
        )
        kind.value.extend(values)
    return message.SerializeToString()


def tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    """Writes a TFRecord file: length, its checksum, data, its checksum."""

    def summed(data: bytes) -> bytes:
        checksum = int.from_bytes(google_crc32c.Checksum(data).digest(), "big")
        return data + struct.pack(
            "<I", ((checksum >> 15) + ((checksum & 0x7FFF) << 17) + 0xA282EAD8) % 2**32
        )

    path.write_bytes(
        b"".join(summed(struct.pack("<Q", len(record))) + summed(record) for record in records)
    )
    return path


def array_record(path: Path, records: Iterable[bytes]) -> Path:
    """Writes an ArrayRecord file with one record per group, as TFDS and Grain want it."""
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def parquet(path: Path, rows: int = 1000, **columns: list) -> Path:
    """Writes a parquet file with checksums, `rows` rows per row group."""
    pq.write_table(pa.table(columns), path, row_group_size=rows, write_page_checksum=True)
    return path


def arrow(path: Path, table: pa.Table, new=pa.ipc.new_stream, rows: int | None = None) -> Path:
    """Writes an Arrow stream, as the package datasets does (or with pa.ipc.new_file a file), `rows`
    rows per batch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def table(path: Path, rows: list[dict]) -> Path:
    """Writes rows as the kind of table that the suffix says: .csv, .tsv, .jsonl, .parquet or
    .arrow."""
    if path.suffix in (".csv", ".tsv"):
        lines = [list(rows[0]), *(map(str, row.values()) for row in rows)]
        path.write_text(
            "".join({".csv": ",", ".tsv": "\t"}[path.suffix].join(line) + "\n" for line in lines)
        )
    elif path.suffix == ".jsonl":
        path.write_bytes(json_lines(*rows))
    else:
        write = (
            pq.write_table if path.suffix == ".parquet" else lambda table, path: arrow(path, table)
        )
        write(pa.Table.from_pylist(rows), path)
    return path


def tfds_folder(
    folder: Path, splits: Mapping[str, list[list[bytes]]], file_format: str, **features
) -> Path:
    """Writes a folder as TFDS prepares it: split name -> shards -> serialised examples."""
    folder.mkdir(parents=True)
    tfds.features.FeaturesDict(features or {"text": tfds.features.Text()}).save_config(folder)
    write = {
        "tfrecord": tfrecord,
        "array_record": array_record,
        "parquet": lambda path, records: parquet(path, 2, data=records),
    }[file_format]
    for name, shards in splits.items():
        for number, records in enumerate(shards):
            write(folder / f"c4-{name}.{file_format}-{number:05d}-of-{len(shards):05d}", records)
    info = {
        "name": "c4",
        "version": folder.name if folder.name[0].isdigit() else "1.0.0",
        "fileFormat": file_format,
        "moduleName": "c4",
        "splits": [
            {
                "name": name,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(shard)) for shard in shards],
            }
            for name, shards in splits.items()
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def remote(folder: Path) -> str:
    """Copies a folder's content to a new place in fsspec's memory, and returns its address."""
    name = secrets.token_hex(4)
    fsspec.filesystem("memory").put(f"{folder}/", f"/{name}/", recursive=True)
    return f"memory://{name}"
