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
                if (
                    rule["times"]
                    and method in (rule.get("method") or method)
                    and re.search(rule["path"], path)
                ):
                    rule["times"] -= 1
                    self.met[rule["kind"]] += 1
                    return rule
        return None


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
        if rule["kind"].isdigit():
            code = int(rule["kind"])
            self._answer(
                code, json.dumps({"error": {"code": code, "message": MESSAGES[code]}}).encode()
            )
        elif rule["kind"] == "drop":
            self._hang_up()
        else:
            if rule["kind"] == "slow":
                time.sleep(rule["seconds"])
            code, headers, content = self._pass_on(body)
            if rule["kind"] == "lost":
                self._hang_up()
            else:
                self._answer(code, content, headers)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_any

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        with self.one_at_a_time:
            wanted = query.get("ifGenerationMatch")
            if wanted and wanted[0] != self._generation(url.path, query, body):
                return (
                    412,
                    [],
                    json.dumps({"error": {"code": 412, "message": "conditionNotMet"}}).encode(),
                )
            code, headers, content = self._ask(self.command, self.path, body)
            if self.command == "GET" and query.get("alt") == ["media"] and code in (200, 206):
                headers.append(("X-Goog-Generation", self._generation(url.path, query, body)))
            return code, headers, content

    def _generation(self, path: str, query: dict[str, list[str]], body: bytes) -> str:
        """Of the object that a request is about, which is named in its address or, for an upload,
        in its first part."""
        place = re.search(r"/b/([^/]+)/o(?:/(.+))?", path)
        assert place, path
        name = place[2] or urllib.parse.quote(
            query["name"][0]
            if "name" in query
            else json.JSONDecoder().raw_decode(body[body.index(b"{") :].decode("latin-1"))[0][
                "name"
            ],
            safe="",
        )
        code, _, content = self._ask("GET", f"/storage/v1/b/{place[1]}/o/{name}", b"")
        return json.loads(content)["generation"] if code == 200 else "0"

    def _ask(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {"Content-Length": str(len(body))}
        for name, value in self.headers.items():
            if name.lower() not in HOP | {"content-length"}:
                headers[name] = value
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator, timeout=60)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), content

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
