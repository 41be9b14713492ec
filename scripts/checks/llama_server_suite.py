"""Run the tests of llama.cpp's server against ours, and compare their outcomes with those that are expected.

    pip download --no-binary=llama-cpp-python --no-deps llama-cpp-python==VERSION && .venv/bin/python scripts/checks/llama_server_suite.py llama_cpp_python-*.tar.gz

The tests are those in the sdist of the pinned llama-cpp-python (`vendor/llama.cpp/tools/server/tests`); they are unpacked into a temporary folder. Where
they start the program llama-server, `Program` reads its options and serves in this process. Where they download a model, it takes `tales` or a tiny model.
Texts of other models are not compared: where a test searches a text for words, any text counts.

A function holds if all its cases do. `EXPECTED` has a reason for each function that does not hold:

- `model`: it needs a model, a projector or an adapter that is not at hand, or compares numbers of one;
- `differs`: the answer is meant to differ;
- `lacks`: something that this server should do;
- `none`: it is about something that this server does not have, whatever its outcome: see docs/clients.md.

Exit status 1 where a function does not hold and is not expected, or holds and is not expected to. Arguments after `--` go to pytest, which then runs a part.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import types
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXPECTED_FILE = Path(__file__).with_name("llama_server_suite.json")
KINDS = ("holds", "model", "differs", "lacks", "none")
FOLDERS = ("tools/server/tests/", "models/templates/")
# environment variables of the child: the file for the outcomes, and a folder for models
OUTCOMES, MODELS = "SUITE_OUTCOMES", "SUITE_MODELS"

# ---- the child: a plugin of pytest

# Option -> name of an option of `gguf_spec.load`, and how its value is read.
LOADING = {
    "--ctx-size": ("n_ctx", int),
    "--parallel": ("parallel", int),
    "--threads": ("threads", int),
    "--pooling": ("pooling", str),
    "--chat-template": ("chat_template", str),
    "--chat-template-file": (
        "chat_template",
        lambda text: Path(text).read_text(encoding="utf-8"),
    ),
}
SAMPLING = {
    "--temp": ("temperature", float),
    "--seed": ("seed", int),
    "--n-predict": ("max_tokens", lambda text: None if text == "-1" else int(text)),
}
# Options whose effect the answers do not show, with the number of values.
IGNORED = {
    "--offline": 0, "--batch-size": 1, "--ubatch-size": 1, "--n-gpu-layers": 1, "--cont-batching": 0, "--embedding": 0, "--reranking": 0,
    "--metrics": 0, "--slots": 0, "--no-slots": 0, "--kv-unified": 0, "--swa-full": 0, "-ctk": 1, "-ctv": 1, "-fa": 1, "--jinja": 0, "--no-jinja": 0,
    "--verbose": 0, "--reasoning-format": 1, "--reasoning": 1, "--cache-ram": 1, "--no-cache-idle-slots": 0, "--hf-file": 1, "--tags": 1,
    "--backend_sampling": 0, "--spec-type": 1, "--spec-draft-n-max": 1, "--spec-draft-n-min": 1, "--model-draft": 1, "--no-ui": 0, "--context-shift": 0, "--host": 1,
}  # fmt: skip
# Repository or file of a model -> the one at hand.
AT_HAND = {
    "test-model-stories260K-infill": "coder",
    "test-model-stories260K": "tales",
    "tinyllamas/stories260K.gguf": "tales",
    "stories15M_MOE": "tales",
    "bert-bge-small": "bert",
    "jina-reranker": "rank",
}
# Words of their texts, which their encoders have as one token each.
WORDS = [
    "believe", "meaning", "of", "life", "this", "test", "another", "write", "joke", "about", "ai", "from", "very",
    "long", "prompt", "which", "will", "not", "be", "truncated", "machine", "learning", "system", "that", "uses",
]  # fmt: skip
_loaded: dict[str, object] = {}


def model_at_hand(name):
    """Return a model for one of theirs, or None."""
    kind = next((here for theirs, here in AT_HAND.items() if theirs in name), None)
    if kind in (None, "tales"):
        return kind
    from tests.server.conftest import infill_model
    from tests.support import encoders

    path = Path(os.environ[MODELS]) / f"{kind}.gguf"
    if not path.exists():
        if kind == "coder":
            infill_model(path, ("pre", "suf", "mid", "rep", "sep"))
        else:
            kinds = {"pooling": 4, "ranks": True} if kind == "rank" else {}
            encoders.write(path, words=WORDS, n_ctx=512, **kinds)
    return path


class Program:
    """Stands in for the process of llama-server."""

    pid = 0

    def __init__(self, args, **_):
        self._server, self.returncode = None, 1
        words, options, sampling = iter(args[1:]), {}, {}
        port, key, alias, model = 0, None, None, ""
        with contextlib.suppress(StopIteration):
            while True:
                word = next(words)
                if word in LOADING:
                    name, read = LOADING[word]
                    options[name] = read(next(words))
                elif word in SAMPLING:
                    name, read = SAMPLING[word]
                    sampling[name] = read(next(words))
                elif word in IGNORED:
                    for _ in range(IGNORED[word]):
                        value = next(words)
                        model += f" {value}" if word == "--hf-file" else ""
                elif word == "--port":
                    port = int(next(words))
                elif word == "--api-key":
                    key = next(words)
                elif word == "--alias":
                    alias = next(words)
                elif word in ("--hf-repo", "--model"):
                    model += f" {next(words)}"
                else:
                    print(f"no such option here: {word}")
                    return
        given = model_at_hand(model)
        if given is None:
            print(f"no such model here: {model}")
            return
        if options.get("n_ctx") and "--kv-unified" not in args:  # theirs counts all requests
            options["n_ctx"] //= options.get("parallel", 1)
        if sampling.get("seed", 0) < 0:
            del sampling["seed"]
        drafts = any(word.startswith(("--spec-", "--model-draft")) for word in args[1:])
        self._server = serve(given, port, key, alias, options | {"sampling": sampling}, drafts)
        self.returncode = None

    def poll(self):
        return self.returncode

    def wait(self, **_):
        return self.returncode

    def terminate(self):
        if self._server:
            self._server.close(grace=0)
        self._server, self.returncode = None, 0

    kill = terminate


def serve(given, port, key, alias, options, drafts):
    import gguf_spec
    from gguf_spec.server import serve_in_thread

    name = json.dumps([str(given), options, drafts], sort_keys=True)
    if name not in _loaded:
        for old in [*_loaded][:-3]:
            _loaded.pop(old).close()
        draft = "auto" if given == "tales" and drafts else None
        parts = {"extra_bufts": False, "threads": 1} | options
        _loaded[name] = gguf_spec.load(given, draft, **parts)
    llm = _loaded[name]
    llm.name = (alias or llm.name).split(",")[0]
    return serve_in_thread(llm, port=port, api_key=key)


def prepare():
    """Put `Program` in place of their program, before their conftest.py is imported."""
    sys.modules["wget"] = types.ModuleType("wget")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["PORT"] = str(free.getsockname()[1])
    sys.path.insert(0, str(Path.cwd()))
    import utils

    names = {name: value for name, value in vars(subprocess).items() if name[0] != "_"}
    utils.subprocess = types.SimpleNamespace(**names | {"Popen": Program})
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.download_file = lambda url, *_: url.rpartition("/")[2]
    ask = utils.ServerProcess.make_request

    def make_request(*given, **named):
        reply = ask(*given, **named)
        reply.headers = {name.title(): value for name, value in reply.headers.items()}
        return reply

    utils.ServerProcess.make_request = make_request
    utils.match_regex = lambda _, text: isinstance(text, str)
    utils.DEFAULT_REQUEST_TIMEOUT = 60


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        with Path(os.environ[OUTCOMES]).open("a", encoding="utf-8") as file:
            why = str(getattr(report.longrepr, "reprcrash", report.longrepr) or "")
            file.write(json.dumps([report.nodeid, report.outcome, why[-300:]]) + "\n")


if OUTCOMES in os.environ:
    prepare()

# ---- the parent


def unpack(sdist, folder):
    """Unpack the tests of an sdist, and the chat templates that they read."""
    with tarfile.open(sdist, "r|gz") as archive:
        for member in archive:
            rest = member.name.partition("/vendor/llama.cpp/")[2]
            if rest.startswith(FOLDERS) and member.isfile() and ".." not in rest:
                path = folder / rest
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.extractfile(member).read())


def run(folder, words):
    """Run the tests; return function -> whether it holds, and the first fault."""
    outcomes = folder / "outcomes.jsonl"
    places = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = os.environ | {
        OUTCOMES: str(outcomes), MODELS: str(folder), "PYTHONPATH": places, "SLOW_TESTS": "0", "PYTEST_ADDOPTS": "",
    }  # fmt: skip
    plugin = ["-p", Path(__file__).stem, "-p", "no:xdist", "-p", "no:cacheprovider"]
    plugin += ["-m", "not slow"]  # these need models of billions of weights
    command = [sys.executable, "-m", "pytest", *plugin, "-q", "--tb=line", "-rN", *words]
    subprocess.run(command, cwd=folder / FOLDERS[0], env=environment, check=False)
    found = {}
    for line in outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else ():
        node, outcome, why = json.loads(line)
        name = re.sub(r"^unit/|\[.*", "", node)
        if outcome == "failed":
            found[name] = why or "failed"
        elif outcome == "passed":
            found.setdefault(name, "")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sdist", type=Path, help="sdist of the pinned llama-cpp-python")
    parser.add_argument("words", nargs="*", help="arguments of pytest, after --")
    given = parser.parse_args()
    expected = json.loads(EXPECTED_FILE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        unpack(given.sdist, Path(name))
        found = run(Path(name), given.words)
    counts, wrong = Counter(), []
    for function, fault in sorted(found.items()):
        kind, reason = expected.get(function, ("holds", ""))
        counts["holds" if not fault else "lacks" if kind == "holds" else kind] += 1
        if fault and kind == "holds":
            wrong.append(f"{function}: {fault}")
        elif not fault and kind not in ("holds", "none"):
            wrong.append(f"{function} holds, but is expected not to: {reason}")
    print("\n".join(wrong))
    print(", ".join(f"{kind}: {counts[kind]}" for kind in KINDS))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
