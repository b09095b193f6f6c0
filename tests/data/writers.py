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
    lines = [json.dumps(record) + "\n" for record in records]
    return "".join(lines).encode()


def example(**features: bytes | int | list) -> bytes:
    """A serialized tf.train.Example of byte strings and integers, or of lists of them."""
    message = tf_example_pb2.Example()
    for name, value in features.items():
        feature = message.features.feature[name]
        values = value if isinstance(value, list) else [value]
        has_integers = bool(values) and isinstance(values[0], int)
        kind = feature.int64_list if has_integers else feature.bytes_list
        kind.value.extend(values)
    return message.SerializeToString()


def masked_checksum(data: bytes) -> bytes:
    """The masked CRC-32C of TFRecord files."""
    checksum = int.from_bytes(google_crc32c.Checksum(data).digest(), "big")
    rotated = (checksum >> 15) + ((checksum & 0x7FFF) << 17)
    masked = (rotated + 0xA282EAD8) % 2**32
    return struct.pack("<I", masked)


def tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    """Writes a TFRecord file: for each record, its length, checksum, data and checksum."""
    content = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        content += length + masked_checksum(length)
        content += record + masked_checksum(record)
    path.write_bytes(content)
    return path


def array_record(path: Path, records: Iterable[bytes]) -> Path:
    """Writes an ArrayRecord file with one record per group, as TFDS and Grain do."""
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def parquet(path: Path, rows: int = 1000, **columns: list) -> Path:
    """Writes a parquet file with checksums, `rows` rows per row group."""
    rows_to_write = pa.table(columns)
    pq.write_table(rows_to_write, path, row_group_size=rows, write_page_checksum=True)
    return path


def arrow(path: Path, table: pa.Table, new=pa.ipc.new_stream, rows: int | None = None) -> Path:
    """Writes an Arrow stream, as the package datasets does, or with pa.ipc.new_file a file, with
    `rows` rows per batch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def table(path: Path, rows: list[dict]) -> Path:
    """Writes rows in the format of the suffix: .csv, .tsv, .jsonl, .parquet or .arrow."""
    match path.suffix:
        case ".csv":
            path.write_text(delimited(rows, ","))
        case ".tsv":
            path.write_text(delimited(rows, "\t"))
        case ".jsonl":
            path.write_bytes(json_lines(*rows))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case ".arrow":
            arrow(path, pa.Table.from_pylist(rows))
    return path


def delimited(rows: list[dict], delimiter: str) -> str:
    """A header and the rows, without quoting."""
    lines = [delimiter.join(rows[0])]
    for row in rows:
        cells = map(str, row.values())
        lines.append(delimiter.join(cells))
    return "\n".join(lines) + "\n"


def tfds_folder(
    folder: Path, splits: Mapping[str, list[list[bytes]]], file_format: str, **features
) -> Path:
    """Writes a folder as TFDS prepares it: split name -> shards -> serialized examples."""
    folder.mkdir(parents=True)
    declared = tfds.features.FeaturesDict(features or {"text": tfds.features.Text()})
    declared.save_config(folder)
    split_infos = []
    for split, shards in splits.items():
        for number, records in enumerate(shards):
            name = f"c4-{split}.{file_format}-{number:05d}-of-{len(shards):05d}"
            write_shard(folder / name, records, file_format)
        split_infos.append(
            {
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(records)) for records in shards],
            }
        )
    is_version = folder.name[0].isdigit()
    info = {
        "name": "c4",
        "version": folder.name if is_version else "1.0.0",
        "fileFormat": file_format,
        "moduleName": "c4",
        "splits": split_infos,
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def write_shard(path: Path, records: list[bytes], file_format: str) -> None:
    """Writes a shard of a TFDS folder."""
    match file_format:
        case "tfrecord":
            tfrecord(path, records)
        case "array_record":
            array_record(path, records)
        case "parquet":
            parquet(path, 2, data=records)
        case _:
            raise ValueError(file_format)


def remote(folder: Path) -> str:
    """Copies a folder to a new folder in fsspec's memory, and returns its address."""
    name = secrets.token_hex(4)
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", f"/{name}/", recursive=True)
    return f"memory://{name}"
