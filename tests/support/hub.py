"""A hub on loopback: the part of huggingface.co's protocol that downloads use, and its faults."""

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + 34 * "0"
LATER = "decade" + 34 * "0"
REPO = "someone/tales-GGUF"


@dataclass
class File:
    """A file on the hub.

    Attributes:
        body: What it should be.
        sent: What is sent instead.
        commit: The commit it belongs to.
        etag: Its sha256, as for all large files, or what is given.
        cdn: Whether it comes from another host, as large files do.
        cuts: After how many bytes the connection breaks, one for each time it is sent.
        pause_at: After how many bytes the hub waits until `go_on` is set.
        headers: More of them.
    """

    body: bytes
    sent: bytes | None = None
    commit: str = COMMIT
    etag: str = ""
    cdn: bool = True
    cuts: list[int] = field(default_factory=list)
    pause_at: int | None = None
    paused: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.etag = self.etag or self.sha256

    @property
    def sha256(self):
        return hashlib.sha256(self.body).hexdigest()


class Hub:
    """The server; `with Hub() as hub` runs it.

    Attributes:
        files: (repository, file) -> the file.
        branch: The commit that `main` is.
        moved: Repository -> what it is called now.
        refused: Repository -> status and headers.
        busy: Statuses and headers that the next requests get, whatever they ask for.
        requests: Method, path and headers of each request.
    """

    def __init__(self):
        self.files, self.branch, self.moved, self.refused, self.busy, self.requests = (
            {},
            COMMIT,
            {},
            {},
            [],
            [],
        )
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_):
        for file in self.files.values():
            file.go_on.set()
        self.server.shutdown()
        self.server.server_close()

    def add(self, file, body, repo=REPO, **options):
        self.files[repo, file] = File(body, **options)
        return self.files[repo, file]

    def sent(self, method):
        """Return the paths requested with a method."""
        return [path for m, path, _ in self.requests if m == method]

    def environment(self, home):
        """Return an environment with this hub and without settings of the user."""
        return {
            "HF_ENDPOINT": self.url, "HF_HOME": str(home), "XDG_CACHE_HOME": str(Path(home) / "cache"), "XDG_CONFIG_HOME": str(Path(home) / "config"),
            "NO_PROXY": "127.0.0.1,localhost", "HF_HUB_DISABLE_TELEMETRY": "", "HF_HUB_DISABLE_XET": "",
        }  # fmt: skip

    def models_file(self, path, **entries):
        """Write a models file: name -> file on this hub, or fields of an entry with one."""
        models = {}
        for name, given in entries.items():
            fields = {"file": given} if isinstance(given, str) else given
            there = self.files.get((fields.get("repo", REPO), fields.get("file")))
            known = {} if there is None else {"size_bytes": len(there.body), "sha256": there.sha256}
            models[name.replace("_", "-")] = (
                {"repo": REPO, "revision": COMMIT, "license": "mit"} | known | fields
            )
        path.write_text(json.dumps({"models": models}), encoding="utf-8")
        return path


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.answer()

        def answer(self):
            hub.requests.append((self.command, self.path, dict(self.headers)))
            if hub.busy:
                return self.head(*hub.busy.pop(0))
            if cdn := re.fullmatch(r"/cdn/(\w+)", self.path):
                return self.send(next(file for file in hub.files.values() if file.etag == cdn[1]))
            asked = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
            if not asked:
                return self.head(404, {"X-Error-Code": "RepoNotFound"})
            repo, revision, name = asked.groups()
            if repo in hub.moved:
                return self.head(307, {"Location": f"/{hub.moved[repo]}/resolve/{revision}/{name}"})
            if repo in hub.refused:
                return self.head(*hub.refused[repo])
            if repo not in {there for there, _ in hub.files}:
                return self.head(401, {"X-Error-Code": "RepoNotFound"})
            commit = hub.branch if revision == "main" else revision
            if commit not in {
                file.commit for (there, _), file in hub.files.items() if there == repo
            }:
                return self.head(404, {"X-Error-Code": "RevisionNotFound"})
            file = hub.files.get((repo, name))
            if file is None or file.commit != commit:
                return self.head(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"'} | file.headers
            if not file.cdn:
                return self.send(file, headers)
            linked = {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.body))}
            return self.head(
                302,
                headers
                | linked
                | {"Location": f"http://localhost:{hub.server.server_port}/cdn/{file.etag}"},
            )

        def head(self, status, headers=()):
            self.send_response(status)
            for name, value in ({"Content-Length": "0"} | dict(headers)).items():
                self.send_header(name, value)
            self.end_headers()

        def send(self, file, headers=()):
            body, start = file.body if file.sent is None else file.sent, 0
            if wanted := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
                start = int(wanted[1])
                headers = dict(headers) | {
                    "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"
                }
            self.head(
                206 if wanted else 200, dict(headers) | {"Content-Length": str(len(body) - start)}
            )
            if self.command == "HEAD":
                return
            end = file.cuts.pop(0) if file.cuts else len(body)
            if file.pause_at is not None and not file.go_on.is_set():
                self.write(body[start : file.pause_at])
                start = file.pause_at
                file.paused.set()
                file.go_on.wait(180)
            self.write(body[start:end])

        def write(self, data):
            try:
                self.wfile.write(data)
                self.wfile.flush()
            except OSError:  # it was given up at the other end
                self.close_connection = True

    return Handler
