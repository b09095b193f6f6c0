"""Buckets for tests: a store in a separate process, and the settings with which commands reach it."""

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

SERVER = pathlib.Path(__file__).with_name("bucket_server.py")


def installed() -> bool:
    """Whether there is what a store needs. It is not imported: gcsfs reads an environment variable
    as it is."""
    needed = ("gcsfs", "gcp_storage_emulator")
    return all(importlib.util.find_spec(name) for name in needed)


class Store:
    """A running store.

    Attributes:
        address: of its proxy.
        environment: the variables with which gcsfs, TensorStore and Google's client find it.
    """

    def __init__(self, address: str):
        self.address = address
        self.environment = {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}

    def make(self, bucket: str) -> str:
        """Makes a bucket; returns its address."""
        self._call("POST", "/storage/v1/b?project=test", {"name": bucket})
        return f"gs://{bucket}"

    def faults(self, *rules: dict) -> None:
        """Replaces the faults in force; see bucket_server.py."""
        self._call("POST", "/faults", [{"path": "", "times": 1} | rule for rule in rules])

    def met(self) -> dict[str, int]:
        """How many requests met each kind of fault since the last call of `faults`."""
        return self._call("GET", "/faults")

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """The names of all objects, sorted."""
        query = urllib.parse.urlencode({"prefix": prefix})
        listing = self._call("GET", f"/storage/v1/b/{bucket}/o?{query}")
        names = [item["name"] for item in listing.get("items", [])]
        return sorted(names)

    def read(self, bucket: str, name: str) -> bytes:
        """An object's content."""
        quoted = urllib.parse.quote(name, safe="")
        return self._fetch("GET", f"/download/storage/v1/b/{bucket}/o/{quoted}?alt=media")

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """Writes an object."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        path = f"/upload/storage/v1/b/{bucket}/o?{query}"
        self._send("POST", path, content, "application/octet-stream")

    def delete(self, bucket: str, name: str) -> None:
        """Deletes an object, if there is one."""
        if name in self.names(bucket, name):
            quoted = urllib.parse.quote(name, safe="")
            self._fetch("DELETE", f"/storage/v1/b/{bucket}/o/{quoted}")

    def _call(self, method: str, path: str, value: object = None) -> dict:
        return json.loads(self._fetch(method, path, value) or b"{}")

    def _fetch(self, method: str, path: str, value: object = None) -> bytes:
        data = None if value is None else json.dumps(value).encode()
        return self._send(method, path, data, "application/json")

    def _send(self, method: str, path: str, data: bytes | None, kind: str) -> bytes:
        address = self.address + path
        headers = {"Content-Type": kind}
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@contextlib.contextmanager
def store(seconds: float = 900) -> Iterator[Store]:
    """Starts a store, which ends with the block or with this process, and after `seconds` at the
    latest."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), f"--seconds={seconds}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin
    assert process.stdout
    try:
        yield Store(process.stdout.readline().strip())
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
