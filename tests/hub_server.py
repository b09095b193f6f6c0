"""A Hugging Face hub on this machine, in memory: what its client asks for to download files and to
upload a folder."""

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/[^/]+/(?P<name>.+)")
API = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/(?P<action>preupload|commit)/main")


class Hub(dict):
    """repository -> file name -> content. Its `url` is that of the server, while there is one."""

    url = ""

    def commit(self, repository: str) -> str:
        """What names the newest version of a repository."""
        content = repr(sorted(self[repository].items())).encode()
        return hashlib.sha1(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does; `hub` is set by `serve`."""

    hub: Hub

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_json(self, value: object) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        match = FILE.fullmatch(self.path)
        if not match or match["repository"] not in self.hub:
            return self.answer(404, X_Error_Code="RepoNotFound")
        repository = match["repository"]
        name = match["name"]
        files = self.hub[repository]
        commit = {"X_Repo_Commit": self.hub.commit(repository)}
        if name not in files:
            return self.answer(404, X_Error_Code="EntryNotFound", **commit)
        content = files[name]
        digest = hashlib.sha1(content).hexdigest()
        return self.answer(200, content, ETag=f'"{digest}"', **commit)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.headers.get("Authorization") != "Bearer hf_good":
            return self.answer(401, b'{"error": "Invalid username or password."}')
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization", "me")
            repository = f"{owner}/{asked['name']}"
            self.hub.setdefault(repository, {})
            return self.answer_json({"url": f"{self.hub.url}/{repository}", "name": repository})
        if self.path == "/api/validate-yaml":
            return self.answer_json({"errors": [], "warnings": []})
        path, _, _ = self.path.partition("?")
        match = API.fullmatch(path)
        if not match:
            return self.answer(404)
        if match["action"] == "preupload":
            return self.answer_json({"files": uploads_of(json.loads(body)["files"])})
        repository = match["repository"]
        for line in body.decode().splitlines():
            operation = json.loads(line)
            if operation["key"] == "file":
                file = operation["value"]
                content = base64.b64decode(file["content"])
                self.hub[repository][file["path"]] = content
        commit = self.hub.commit(repository)
        return self.answer_json(
            {
                "success": True,
                "commitOid": commit,
                "commitUrl": f"{self.hub.url}/{repository}/commit/{commit}",
                "hookOutput": "",
            }
        )

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@contextlib.contextmanager
def serve():
    """Yields a `Hub`, on a free port of 127.0.0.1."""
    hub = Hub()
    handler = type("Bound", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def uploads_of(files: list[dict]) -> list[dict]:
    """How each file of a commit is to be uploaded: with the commit, not through LFS."""
    uploads = []
    for file in files:
        upload = {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
        uploads.append(upload)
    return uploads
