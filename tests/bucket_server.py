"""A bucket store on 127.0.0.1 for tests: gcp-storage-emulator, behind a proxy that makes faults.

    python tests/bucket_server.py [--seconds=600]

Prints the address of the proxy, then serves until its standard input is closed or the time is over.
The emulator ignores `ifGenerationMatch` and does not tell generations, so the proxy does. `POST
/faults` with a list of rules replaces the rules in force:

    {"kind": "503" | "401" | "403" | "slow" | "drop" | "lost", "path": REGULAR EXPRESSION, "method":
     "", "times": 3, "seconds": 1}

A rule meets the next `times` requests that match. "drop" closes the connection at once, "lost"
after the request was carried out, "slow" waits for `seconds` before it answers. `GET /faults` tells
how many requests met a rule, by kind.
"""

import argparse
import collections
import contextlib
import http.client
import http.server
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.parse
from typing import NamedTuple

from gcp_storage_emulator.server import create_server

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}
MESSAGES = {
    503: "Backend Error",
    401: "Invalid Credentials",
    403: "caller does not have storage.objects.create access",
}


class Faults:
    """The rules in force, and how many requests met each kind."""

    def __init__(self):
        self._lock = threading.Lock()
        self.rules = []
        self.met = collections.Counter()

    def replace(self, rules: list[dict]) -> None:
        with self._lock:
            self.rules = rules
            self.met = collections.Counter()

    def next(self, method: str, path: str) -> dict | None:
        """The rule that this request meets."""
        with self._lock:
            for rule in self.rules:
                if rule["times"] and applies(rule, method, path):
                    rule["times"] -= 1
                    self.met[rule["kind"]] += 1
                    return rule
        return None


def applies(rule: dict, method: str, path: str) -> bool:
    """Whether a rule is about such a request; one without a method is about all methods."""
    is_method = rule.get("method") in (None, "", method)
    is_path = re.search(rule["path"], path) is not None
    return is_method and is_path


class Answer(NamedTuple):
    """Of the emulator."""

    code: int
    headers: list[tuple[str, str]]
    content: bytes


def error_body(code: int, message: str) -> bytes:
    """The content of an error's answer."""
    error = {"code": code, "message": message}
    return json.dumps({"error": error}).encode()


def name_in_upload(body: bytes) -> str:
    """The name of the object in the JSON with which an upload begins."""
    start = body.index(b"{")
    text = body[start:].decode("latin-1")
    metadata, _ = json.JSONDecoder().raw_decode(text)
    return metadata["name"]


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests on to the emulator."""

    protocol_version = "HTTP/1.1"
    faults = Faults()
    one_at_a_time = threading.Lock()
    emulator = 0

    def handle_any(self) -> None:
        body = self._body()
        if self.path == "/faults":
            if self.command == "POST":
                self.faults.replace(json.loads(body))
            self._answer(200, json.dumps(self.faults.met).encode())
            return
        rule = self.faults.next(self.command, self.path) or {"kind": ""}
        kind = rule["kind"]
        if kind.isdigit():
            code = int(kind)
            self._answer(code, error_body(code, MESSAGES[code]))
        elif kind == "drop":
            self._hang_up()
        else:
            if kind == "slow":
                time.sleep(rule["seconds"])
            code, headers, content = self._pass_on(body)
            if kind == "lost":
                self._hang_up()
            else:
                self._answer(code, content, headers)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_any

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = self.headers.get("Content-Length") or 0
            return self.rfile.read(int(length))
        body = b""
        while True:
            size, _, _ = self.rfile.readline().partition(b";")
            chunk = self.rfile.read(int(size, 16))
            self.rfile.readline()
            if not chunk:
                return body
            body += chunk

    def _pass_on(self, body: bytes) -> Answer:
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        with self.one_at_a_time:
            wanted = query.get("ifGenerationMatch")
            if wanted and wanted[0] != self._generation(url.path, query, body):
                return Answer(412, [], error_body(412, "conditionNotMet"))
            answer = self._ask(self.command, self.path, body)
            is_content = self.command == "GET" and query.get("alt") == ["media"]
            if is_content and answer.code in (200, 206):
                generation = self._generation(url.path, query, body)
                answer.headers.append(("X-Goog-Generation", generation))
            return answer

    def _generation(self, path: str, query: dict[str, list[str]], body: bytes) -> str:
        """Of the object that a request is about, which is named in its address or, for an upload,
        in its first part."""
        found = re.search(r"/b/([^/]+)/o(?:/(.+))?", path)
        assert found, path
        bucket, quoted_name = found.groups()
        if not quoted_name:
            name = query["name"][0] if "name" in query else name_in_upload(body)
            quoted_name = urllib.parse.quote(name, safe="")
        answer = self._ask("GET", f"/storage/v1/b/{bucket}/o/{quoted_name}", b"")
        if answer.code != 200:
            return "0"
        return json.loads(answer.content)["generation"]

    def _ask(self, method: str, path: str, body: bytes) -> Answer:
        headers = {"Content-Length": str(len(body))}
        for name, value in self.headers.items():
            if name.lower() not in HOP:
                headers[name] = value
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator, timeout=60)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return Answer(response.status, response.getheaders(), content)

    def _answer(self, code: int, content: bytes, headers: list[tuple[str, str]] = ()) -> None:
        self.send_response_only(code)
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD" and code not in (204, 304):
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that was killed
            super().handle()

    def log_message(self, *_: object) -> None:
        """Nothing: a test reads standard error."""


def main() -> None:
    """Serves until standard input ends, or the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        Proxy.emulator = free.getsockname()[1]
    emulator = create_server("127.0.0.1", Proxy.emulator, in_memory=True)
    emulator.start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    open_input = threading.Thread(target=sys.stdin.read, daemon=True)
    open_input.start()
    open_input.join(options.seconds)
    os._exit(0)  # the emulator's own thread is no daemon


if __name__ == "__main__":
    main()
