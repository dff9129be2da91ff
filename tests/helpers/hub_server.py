"""A stand-in for the HTTP interface of the Hugging Face Hub, as far as models need it."""

import base64
import hashlib
import http.server
import json
import re
import threading
from contextlib import contextmanager
from urllib.parse import unquote

import pytest

SMALL = 4096  # larger files are uploaded apart from the commit, as to the Hub


class Repository:
    """The files of each commit by name, the newest last, and the commit of each branch."""

    def __init__(self, is_private):
        self.is_private = is_private
        self.commits = {}
        self.branches = {"main": self.commit({}, "main")}

    def commit(self, files, revision):
        sha = hashlib.sha1(f"{len(self.commits)}".encode()).hexdigest()
        self.commits[sha] = files
        if self.commits.keys() != {sha}:
            self.branches[revision] = sha
        return sha

    def find(self, revision):
        """Returns the commit of a branch or the commit itself; `None` if there is none."""
        sha = self.branches.get(revision, revision)
        return sha if sha in self.commits else None


class Hub:
    """The repositories by name, and the large files by their SHA-256."""

    def __init__(self, token="secret"):
        self.token = token
        self.repositories, self.large = {}, {}
        self.url = ""


@contextmanager
def serve_hub():
    """Yields a hub that answers at `hub.url`."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *_):
        pass

    def _answer(self, status=200, content=b"", **headers):
        if isinstance(content, dict | list):
            content = json.dumps(content).encode()
            headers["Content-Type"] = "application/json"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _read(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _find(self, name):
        """Returns a repository that the caller may see; `None` after the answer that it is not."""
        found = self.hub.repositories.get(name)
        if found is None or (found.is_private and not self._is_signed_in()):
            self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        return found

    def _is_signed_in(self):
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _find_commit(self, name, revision):
        repository = self._find(name)
        if repository is None:
            return None
        sha = repository.find(unquote(revision))
        if sha is None:
            self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            return None
        return sha, repository.commits[sha]

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            if found := self._find_commit(match[1], match[2] or "main"):
                sha, files = found
                siblings = [{"rfilename": file} for file in files]
                self._answer(content={"id": match[1], "sha": sha, "siblings": siblings})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            if found := self._find_commit(match[1], match[2]):
                self._answer(content=[_describe(*item) for item in found[1].items()])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if found := self._find_commit(match[1], match[2]):
                sha, files = found
                if match[3] not in files:
                    self._answer(404, {"error": "none"}, X_Error_Code="EntryNotFound")
                    return
                content = files[match[3]]
                etag = f'"{_describe(match[3], content)["oid"]}"'
                self._answer(200, content, ETag=etag, X_Repo_Commit=sha)
        else:
            self._answer(404, {"error": path})

    def do_PUT(self):
        content = self._read()
        self.hub.large[hashlib.sha256(content).hexdigest()] = content
        self._answer()

    def do_POST(self):
        path, content = self.path.partition("?")[0], self._read()
        if path == "/api/validate-yaml":
            self._answer(content={"errors": [], "warnings": []})
        elif not self._is_signed_in():
            self._answer(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}"
            status = 409 if name in self.hub.repositories else 200
            is_private = asked.get("visibility") == "private" or asked.get("private") is True
            self.hub.repositories.setdefault(name, Repository(is_private))
            self._answer(status, {"url": f"{self.hub.url}/{name}", "name": name, "id": name})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            if self._find_commit(match[1], match[2]):
                files = [
                    {
                        "path": file["path"],
                        "uploadMode": "regular" if file["size"] < SMALL else "lfs",
                        "shouldIgnore": False,
                        "oid": None,
                    }
                    for file in json.loads(content)["files"]
                ]
                self._answer(content={"files": files})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**asked, "actions": {"upload": {"href": f"{self.hub.url}/large/{asked['oid']}"}}}
                for asked in json.loads(content)["objects"]
            ]
            self._answer(content={"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            if found := self._find_commit(match[1], match[2]):
                files = dict(found[1])
                for line in map(json.loads, content.splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        files[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        files[value["path"]] = self.hub.large[value["oid"]]
                sha = self.hub.repositories[match[1]].commit(files, unquote(match[2]))
                url = f"{self.hub.url}/{match[1]}/commit/{sha}"
                self._answer(content={"commitUrl": url, "commitOid": sha, "pullRequestUrl": None})
        else:
            self._answer(404, {"error": path})


def _describe(path, content):
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"type": "file", "path": path, "size": len(content), "oid": oid}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub, and the library of the real one set up for it: signed in, with its own cache."""
    from huggingface_hub import constants

    with serve_hub() as hub:
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", hub.token)
        yield hub
