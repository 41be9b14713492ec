"""`gguf-spec models` from end to end, against a hub on loopback."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import close_session

import gguf_spec
from gguf_spec import models
from gguf_spec.cli import models as models_command
from gguf_spec.errors import UnreachableError
from gguf_spec.registry import resolve
from gguf_spec.system.files import files_below
from tests.support import children
from tests.support.hub import COMMIT, REPO, Hub

TALES = Path(gguf_spec.__file__).parent / "data" / "tales"
BODY = (TALES / "tales-draft-Q4_0.gguf").read_bytes()
SHORT = BODY[:100_000]


@pytest.fixture
def hub():
    with Hub() as hub:
        hub.add("one.gguf", BODY)
        hub.add("two.gguf", SHORT)
        yield hub


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def names(hub, tmp_path):
    """A models file: `one`, drafted by `two`, and `two`."""
    return hub.models_file(
        tmp_path / "names.yaml",
        one={"file": "one.gguf", "draft": "two", "aliases": ["uno"]},
        two="two.gguf",
    )


@pytest.fixture
def settings(hub, home, names):
    """The environment in which this hub and these names are found."""
    return hub.environment(home) | {"GGUF_SPEC_MODELS_FILE": str(names), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def command(settings, environment):
    """Return how a process that runs `gguf-spec models` is started."""

    def build(*args, env=()):
        line = [sys.executable, "-m", "gguf_spec", "models", *map(str, args)]
        return line, environment | settings | dict(env)

    return build


@pytest.fixture
def run(here, settings, tmp_path):
    """Run `gguf-spec models`, or the given command, in this process."""

    def start(*args, env=(), command="models"):
        return here(command, *args, env=settings | dict(env), cwd=tmp_path, text=True)

    yield start
    close_session()


@pytest.fixture
def terminal(command, tmp_path):
    """Run the command at a terminal; return its exit code and what it showed."""

    def start(*args, typed=b""):
        line, settings = command(*args, env={"COLUMNS": "100", "TERM": "xterm"})
        code, seen = children.at_terminal(line, typed=typed, env=settings, cwd=tmp_path)
        return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r", "\n")

    return start


def fails(result, *said, code=1):
    assert re.fullmatch(
        r"(Note: [^\n]+\n|downloading [^\n]+\n|verifying [^\n]+\n)*Error: [^\n]+\nHint: [^\n]+\n",
        result.stderr,
    ), result.stderr
    assert (result.returncode, result.stdout) == (code, "")
    for words in said:
        assert words in result.stderr
    return result.stderr


def leftovers(home):
    return sorted(home.glob("hub/*/blobs/*"))


# ---- pull


def test_pull(run, hub, home):
    result = run("pull", "uno")
    assert (result.returncode, result.stdout) == (0, "")
    folder = home / "hub" / "models--someone--tales-GGUF" / "snapshots" / COMMIT
    lines = result.stderr.splitlines()
    assert [line for i, line in enumerate(lines) if i not in (2, 5)] == [
        "downloading one, 1.1 MiB", "verifying one, 1.1 MiB", "downloading two, 0.1 MiB", "verifying two, 0.1 MiB",
    ]  # fmt: skip
    assert re.fullmatch(
        rf"one: 1\.1 MiB in [\d.]+ s, sha256 verified: {re.escape(str(folder))}/one\.gguf", lines[2]
    )
    assert re.fullmatch(
        rf"two: 0\.1 MiB in [\d.]+ s, sha256 verified: {re.escape(str(folder))}/two\.gguf", lines[5]
    )
    assert (folder / "one.gguf").read_bytes() == BODY
    hub.requests.clear()
    result = run("pull", "uno")
    assert result.stderr.splitlines() == [
        f"{name}: already on this disk, sha256 verified: {folder}/{name}.gguf"
        for name in ("one", "two")
    ]
    assert run("path", "uno").stdout == f"{folder}/one.gguf\n"
    assert run("pull", "one", "--offline", env={"HF_HUB_OFFLINE": "1"}).returncode == 0
    assert hub.requests == []


def test_a_draft_whose_source_cannot_be_reached_is_a_note_unless_it_was_named(run, monkeypatch):
    pull = models.pull

    def only_one(entry, **options):
        if entry.name == "two":
            raise UnreachableError("two", "the hub cannot be reached.", "try again.")
        return pull(entry, **options)

    monkeypatch.setattr(models, "pull", only_one)
    result = run("pull", "uno")
    assert result.returncode == 0
    assert "one: 1.1 MiB in" in result.stderr
    assert result.stderr.endswith(
        "Note: the draft two was not downloaded: the hub cannot be reached. Without it drafts come from the text.\n"
    )
    fails(run("pull", "two"), "the hub cannot be reached.")
    assert (
        "from a package index come smollm2-135m-instruct, qwen2.5-coder-1.5b"
        in run("pull", "two").stderr
    )
    fails(run("pull", "one", "two", "-q"), "the hub cannot be reached.")


def test_pull_without_drafts_in_json(run, hub):
    result = run("pull", "one", "--no-draft", "--json", "-q")
    assert (result.returncode, result.stderr) == (0, "")
    (one,) = json.loads(result.stdout)["models"]
    assert (one["name"], one["n_bytes"], one["loaded_bytes"], one["verified"]) == (
        "one",
        len(BODY),
        len(BODY),
        "sha256",
    )
    assert Path(one["paths"][0]).read_bytes() == BODY
    again = json.loads(run("pull", "one", "two", "one", "-q", env={"GGUF_SPEC_JSON": "1"}).stdout)[
        "models"
    ]
    assert [(model["name"], model["loaded_bytes"]) for model in again] == [
        ("one", 0),
        ("two", len(SHORT)),
    ]


def test_a_place_on_the_hub(run, hub):
    result = run("pull", f"hf:{REPO}/one.gguf")
    assert result.returncode == 0
    assert result.stderr.startswith(
        f"Note: the licence of hf:{REPO}/one.gguf is unknown: https://huggingface.co/{REPO}\ndownloading "
    )
    assert "size and the hub's etag verified, as no sha256 is declared" in result.stderr
    hub.requests.clear()
    assert Path(run("path", f"hf:{REPO}/one.gguf").stdout.strip()).read_bytes() == BODY
    assert Path(run("path", f"hf:{REPO}/one.gguf@{COMMIT}").stdout.strip()).read_bytes() == BODY
    assert hub.requests == []


def test_a_token_is_sent_only_to_the_hub(run, hub):
    assert run("pull", "two", env={"HF_TOKEN": "hf_x"}).returncode == 0
    sent = {(path.split("/")[1], headers.get("authorization")) for _, path, headers in hub.requests}
    assert sent == {("someone", "Bearer hf_x"), ("cdn", None)}


@pytest.mark.full
def test_at_a_terminal(terminal, hub):
    code, seen = terminal("pull", "one")
    assert code == 0
    assert "downloading one" in seen
    assert "verifying one" in seen
    assert re.search(r"1\.1/1\.1 MiB", seen)
    assert "MiB/s" in seen
    assert "one: 1.1 MiB in " in seen
    assert "To use it: gguf-spec chat -m one" in seen
    assert "tales-draft" not in seen  # nor anything of a bar of the library's
    assert "http" not in seen


@pytest.mark.full
def test_interrupted(command, run, hub, home, tmp_path):
    file = hub.files[REPO, "one.gguf"]
    file.pause_at = len(BODY) - 1000
    line, settings = command("pull", "one", "--no-draft")
    child = children.Child(line, env=settings, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert file.paused.wait(180)
    until = time.monotonic() + 180
    while not any(
        path.suffix == ".incomplete" and path.stat().st_size > 1_000_000
        for path in files_below(home)
    ):
        assert time.monotonic() < until
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=180)[1]
    assert said == "downloading one, 1.1 MiB\nInterrupted. Repeat the command to continue.\n"
    assert child.returncode == 130
    assert leftovers(home) == []
    fails(run("path", "one"), "one (1.1 MiB) is not on this disk")
    file.go_on.set()
    assert run("pull", "one", "--no-draft").returncode == 0
    assert Path(run("path", "one").stdout.strip()).read_bytes() == BODY


@pytest.mark.full
def test_killed(command, run, hub, home, tmp_path):
    """An incomplete download is not used as the file."""
    file = hub.files[REPO, "one.gguf"]
    file.pause_at = len(BODY) - 1000
    line, settings = command("pull", "one", "--no-draft")
    child = children.Child(line, env=settings, cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert file.paused.wait(180)
    child.kill()
    child.wait()
    fails(run("path", "one"), "is not on this disk")
    file.go_on.set()
    assert run("pull", "one", "--no-draft").returncode == 0
    assert Path(run("path", "one").stdout.strip()).read_bytes() == BODY


@pytest.mark.full
def test_two_at_once(command, hub, tmp_path):
    file = hub.files[REPO, "one.gguf"]
    file.pause_at = 1000
    line, settings = command("pull", "one", "--no-draft", "--json", "-q")
    pulls = [
        children.Child(
            line,
            env=settings,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert file.paused.wait(180)
    until = time.monotonic() + 180
    while len(hub.sent("HEAD")) < 4:  # both have asked twice, and one of them waits for the other
        assert time.monotonic() < until
        time.sleep(0.05)
    file.go_on.set()
    said = [child.communicate(timeout=180) for child in pulls]
    assert [(child.returncode, stderr) for child, (_, stderr) in zip(pulls, said, strict=True)] == [
        (0, ""),
        (0, ""),
    ]
    pulled = [json.loads(stdout)["models"][0] for stdout, _ in said]
    assert sorted(model["loaded_bytes"] for model in pulled) == [0, len(BODY)]
    assert {model["verified"] for model in pulled} == {"sha256"}
    assert len([path for path in hub.sent("GET") if path.startswith("/cdn")]) == 1


def test_a_corrupt_body(run, hub, home):
    file = hub.files[REPO, "one.gguf"]
    file.sent = BODY[:-1] + b"\0"
    fails(
        run("pull", "one"),
        "one.gguf has the sha256",
        "it was deleted",
        "to download it again, use gguf-spec models pull one --force.",
    )
    assert leftovers(home) == []
    assert hub.files[REPO, "two.gguf"].etag not in str(hub.requests)
    file.sent = None
    assert run("pull", "one", "--force").returncode == 0


def test_gated(run, hub):
    hub.refused[REPO] = (401, {"X-Error-Code": "GatedRepo"})
    fails(
        run("pull", "one"), f"{REPO} is gated", f"accept it at {hub.url}/{REPO}, and set HF_TOKEN"
    )


@pytest.mark.parametrize(("args", "said", "todo"), [
    (("pull", f"hf:{REPO}/three.gguf"), f"{REPO} has no file three.gguf at main", "/tree/main"),
    (("pull", f"hf:{REPO}/one.gguf@v2"), f"{REPO} has no revision v2", "/commits/main"),
    (("pull", "hf:no/such/one.gguf"), "there is no repository no/such, or it is private", "HF_TOKEN"),
    (("pull", "three"), "there is no file three", "a name"),
    (("path", "one"), "one (1.1 MiB) is not on this disk", "Hint: to download it, use gguf-spec models pull one."),
    (("remove", "one"), "one is not on this disk, so there is nothing to remove.", "Hint: gguf-spec models list --cached shows the models on this disk."),
    (("pull", "one", "--offline"), "is not on this disk", "Hint: to download it, use gguf-spec models pull one without --offline."),
])  # fmt: skip
def test_what_is_missing(run, args, said, todo):
    fails(run(*args), said, todo)


def test_wrong_usage(run):
    fails(run("pull"), "NAME", code=2)
    fails(
        run("pull", "one", "--force", "--offline"),
        "--force cannot be combined with --offline",
        code=2,
    )
    fails(
        run("remove", "tales", "--yes"),
        "tales was not downloaded, so it cannot be removed",
        code=2,
    )


def test_offline_by_the_environment(run, hub):
    fails(
        run("pull", "one", env={"HF_HUB_OFFLINE": "1"}),
        "is not on this disk",
        "one without HF_HUB_OFFLINE.",
    )
    assert hub.requests == []


def test_no_answer(run):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        result = run("pull", "two", env={"HF_HUB_ETAG_TIMEOUT": "1", "HF_ENDPOINT": address})
    fails(
        result,
        f"{address} did not respond in time",
        "check HF_ENDPOINT, try again, or set longer times in HF_HUB_ETAG_TIMEOUT and",
    )


def test_no_room(run, hub, monkeypatch):
    full = shutil._ntuple_diskusage(10**9, 10**9, 1_200_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    fails(run("pull", "one"), "one and two needs 1.2 MiB but 1.1 MiB are free", "HF_HOME")
    assert hub.requests == []
    assert run("pull", "one", "--no-draft").returncode == 0


@pytest.mark.full
def test_a_disk_that_is_full(run, hub, home, monkeypatch):
    """A real one, where one can be mounted."""
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", home]
    if (
        not shutil.which("mount")
        or children.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    try:
        fails(run("pull", "one", "--no-draft"), "one needs 1.1 MiB but 1.0 MiB are free")
        blind = shutil._ntuple_diskusage(10**9, 0, 10**9)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: blind)
        fails(
            run("pull", "one", "--no-draft"),
            f"the disk of {home}/hub is full: one.gguf was not downloaded",
            "free disk space",
        )
        assert leftovers(home) == []
    finally:
        children.run(["umount", home], check=True)


@pytest.mark.full
def test_licences(run, terminal, hub, names, home):
    hub.models_file(
        names, one={"file": "one.gguf", "license": "gemma", "draft": "two"}, two="two.gguf"
    )
    note = (
        f"Note: the licence of one is gemma, which is not permissive: https://huggingface.co/{REPO}"
    )
    code, seen = terminal("pull", "one", typed=b"n\n")
    assert code == 1
    assert note in seen
    assert "Download it under this licence? [y/N]" in seen
    assert "Nothing was downloaded." in seen
    assert hub.requests == []
    code, seen = terminal("pull", "one", "--no-draft", typed=b"y\n")
    assert (code, note in seen, "one: 1.1 MiB in " in seen) == (0, True, True)
    assert note not in run("pull", "one").stderr  # it is there
    shutil.rmtree(home / "hub")
    assert run("pull", "one", "-q").stderr == note + "\n"
    shutil.rmtree(home / "hub")
    code, seen = terminal("pull", "one", "--yes", typed=b"n\n")
    assert (code, note in seen, "[y/N]" in seen) == (0, True, False)


def test_a_split_model(run, hub, names):
    parts = {f"big-{i:05}-of-00002.gguf": BODY[i:] for i in (1, 2)}
    for name, body in parts.items():
        hub.add(name, body)
    listed = [
        {"file": name, "size_bytes": len(body), "sha256": hub.files[REPO, name].sha256}
        for name, body in parts.items()
    ]
    names.write_text(
        json.dumps(
            {
                "models": {
                    "big": {"repo": REPO, "revision": COMMIT, "license": "mit", "parts": listed}
                }
            }
        )
    )
    (big,) = json.loads(run("pull", "big", "--json").stdout)["models"]
    assert [Path(path).read_bytes() for path in big["paths"]] == list(parts.values())
    assert len({Path(path).parent for path in big["paths"]}) == 1
    assert run("path", "big").stdout.strip() == big["paths"][0]
    shown = run("show", "big").stdout
    assert [
        line.split()[1].strip(",") for line in shown.splitlines() if line.startswith("file")
    ] == list(parts)


# ---- list, show, path, remove


def test_list(run, hub):
    before = run("list")
    assert (before.returncode, before.stderr) == (0, "")
    head, *lines, empty, legend = before.stdout.splitlines()
    assert head.split() == ["name", "size", "here", "licence", "draft", "note"]
    rows = {line.removeprefix("✓").split()[0]: line for line in lines}
    assert rows["one"].split()[1:6] == ["1.1", "MiB", "fast", "mit", "two"]
    assert set(rows) == {*resolve.entries(), "one", "two"}
    here = [line.startswith("✓") for line in lines]
    assert here == sorted(here, reverse=True), "what is here comes first"
    others = [rows[name] for name in rows if not rows[name].startswith("✓")]
    last = [bool(re.search("too big|slow,", one)) for one in others]
    assert last == sorted(last), "what does not suit this machine comes last"
    sizes = [
        resolve.entries()[one.split()[0]].size_bytes
        for one in others
        if one.split()[0] not in ("one", "two")
    ]
    good = sizes[: len(sizes) - sum(last)]
    assert good == sorted(good, reverse=True), "the largest first"
    assert {name for name in rows if rows[name].startswith("✓")} == {
        name for name in rows if name.startswith("tales")
    }
    assert (empty, legend) == (
        "",
        f"✓ on this disk: {sum(here)} of {len(rows)}; gguf-spec models pull NAME downloads the others, gguf-spec models recommend one.",
    )
    assert all(line[head.index("size") - 1] == " " for line in lines)
    notes = {entry.name: entry.note for entry in resolve.entries().values()}
    assert all(rows[name].endswith(note) for name, note in notes.items()), (
        "no note is cut in a pipe"
    )
    run("pull", "two")
    here = [line.startswith("✓") for line in run("list").stdout.splitlines()[1:-2]]
    assert (here, sum(here)) == (sorted(here, reverse=True), 3), "two has moved up"
    cached = run("list", "--cached").stdout.splitlines()
    assert {line.removeprefix("✓").split()[0] for line in cached[1:-2]} == {
        "two",
        *(name for name in resolve.entries() if name.startswith("tales")),
    }
    listed = {one["name"]: one for one in json.loads(run("list", "--json").stdout)["models"]}
    assert (listed["one"]["path"], listed["one"]["size_bytes"], listed["one"]["draft"]) == (
        None,
        len(BODY),
        "two",
    )
    assert Path(listed["two"]["path"]).read_bytes() == SHORT
    assert (listed["two"]["verified"], listed["one"]["verified"], listed["two"]["permissive"]) == (
        "sha256",
        None,
        True,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_list_fits_the_terminal(command, tmp_path, width):
    line, settings = command("list", env={"TERM": "xterm"})
    settings = {name: value for name, value in settings.items() if name != "COLUMNS"}
    code, seen = children.at_terminal(line, size=(30, width), env=settings, cwd=tmp_path)
    lines = seen.decode().replace("\r", "").splitlines()[:-1]
    assert code == 0
    assert max(map(len, lines)) < width
    assert ("licence" in lines[0]) == (width == 160)
    assert any(one.endswith("...") for one in lines) == (width > 60)  # cut notes
    assert "here" in lines[0] and any("qwen2.5-coder-1.5b " in one for one in lines)


def test_show(run, hub, home):
    lines = run("show", "uno").stdout.splitlines()
    facts = {line[:12].strip(): line[12:] for line in lines}
    assert facts["name"] == "one"
    assert facts["aliases"] == "uno"
    assert facts["repository"] == REPO
    assert facts["revision"] == COMMIT
    assert facts["file"] == "one.gguf, 1.1 MiB"
    assert facts["sha256"] == hub.files[REPO, "one.gguf"].sha256
    assert (facts["licence"], facts["draft"], facts["on disk"]) == ("mit", "two", "no")
    run("pull", "one")
    path = run("path", "one").stdout.strip()
    assert f"on disk     {path}, sha256 verified" in run("show", "one").stdout.splitlines()
    shutil.rmtree(home / "cache")
    assert f"on disk     {path}, not verified" in run("show", "one").stdout.splitlines()
    assert json.loads(run("show", "one", "--json").stdout)["verified"] is None
    bundled = f"{TALES}/tales-target-Q8_0.gguf"
    # in a locale that is not UTF-8, bytes of a path may be control characters
    bundled = "".join(letter if letter.isprintable() else "\ufffd" for letter in bundled)
    assert bundled in run("show", "tales").stdout
    assert json.loads(run("path", "one", "--json").stdout) == {"name": "one", "path": path}


def test_an_interrupted_download_says_how_to_go_on(run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gguf_spec.models.pull", interrupt)
    result = run("pull", "one")
    assert result.returncode == 130
    assert result.stderr == "Interrupted. Repeat the command to continue.\n"


def test_remove_asks_or_needs_yes(run, home, tmp_path):
    run("pull", "two")
    for more in ((), ("--json",)):
        fails(run("remove", "two", *more), "two was not removed", "Hint: add --yes to remove it.")
    assert run("path", "two").returncode == 0
    assert run("remove", "two", "--yes").stdout.startswith("two: removed, ")


@pytest.mark.full
def test_remove(run, terminal, hub, home):
    run("pull", "one")
    code, seen = terminal("remove", "one", typed=b"n\n")
    assert (code, "Remove one, " in seen) == (1, True)
    assert run("path", "one").returncode == 0
    hub.requests.clear()
    result = run("remove", "uno", "--yes")
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        "one: removed, 1.1 MiB were freed\n",
        "",
    )
    assert run("path", "one").returncode == 1
    assert [path.name for path in leftovers(home)] == [hub.files[REPO, "two.gguf"].etag]
    assert json.loads(run("remove", "two", "--json", "--yes").stdout) == {
        "models": [{"name": "two", "freed_bytes": len(SHORT)}]
    }
    assert leftovers(home) == []
    assert hub.requests == []


# ---- a pair by its name


@pytest.fixture
def pair(hub, tmp_path):
    """The bundled pair, as the hub would have it."""
    for role, kind in (("target", "Q8_0"), ("draft", "Q4_0")):
        hub.add(f"tales-{role}-{kind}.gguf", (TALES / f"tales-{role}-{kind}.gguf").read_bytes())
    small = {"file": "tales-draft-Q4_0.gguf", "license": "cc0-1.0", "prompt": "text"}
    large = {
        "file": "tales-target-Q8_0.gguf",
        "license": "cc0-1.0",
        "prompt": "text",
        "draft": "story-draft",
    }
    return hub.models_file(tmp_path / "pair.yaml", story=large, story_draft=small)


@pytest.mark.full
@pytest.mark.parametrize("where", ["of the user", "by the option"])
def test_a_pair_by_its_name(run, hub, home, pair, where):
    """Pulled by its name, then loaded by its name, with its draft, with no request."""
    from_hub = {"GGUF_SPEC_MODELS_FILE": str(pair)}
    if where == "of the user":
        from_hub = {"GGUF_SPEC_MODELS_FILE": ""}
        (home / "config" / "gguf-spec").mkdir(parents=True)
        pair.rename(home / "config" / "gguf-spec" / "models.yaml")
    assert run("pull", "story", env=from_hub).returncode == 0
    hub.requests.clear()
    answers = {}
    for name in ("story", "tales"):
        fixed = ("--threads", "1", "--seed", "1", "--fixed", "-k", "4", "--drafter", "model")
        args = ("Once upon a time", "-m", name, "-n", "24", "--json", *fixed)
        result = run(*args, env=from_hub, command="generate")
        assert result.returncode == 0, result.stderr
        answers[name] = json.loads(result.stdout)
    assert answers["story"]["text"] == answers["tales"]["text"]
    assert answers["story"]["stats"]["n_drafted"] > 0
    assert hub.requests == []


def test_recommend(here):
    code, out, _ = (
        (one := here("models", "recommend", "embed", text=True)).returncode,
        one.stdout,
        one.stderr,
    )
    first, second = out.splitlines()
    assert code == 0 and first.split() == ["fast", "nomic-embed-text-v1.5", "262", "MiB", "fits"]
    assert second == "To download one: gguf-spec models pull NAME"
    told = json.loads(here("models", "recommend", "code", "--json", text=True).stdout)
    assert told["name"].startswith("qwen2.5-coder-") and told["here"]
    names = [one["name"] for one in told["choices"].values()]
    assert told["name"] in names
    lines = here("models", "recommend", "code", text=True).stdout.splitlines()
    assert [line.split()[:2] for line in lines[: len(names)]] == [
        [choice, one["name"]] for choice, one in told["choices"].items()
    ]


@pytest.mark.parametrize("width", [39, 59, 79, 119, None])
def test_a_narrow_list_keeps_whole_names_and_speeds(width):
    rows = [
        ("", "name", "size", "here", "licence", "draft", "note"),
        ("*", "smollm2-135m-instruct", "1.0 GiB", "slow, ~0.8 tok/s", "apache-2.0", "ngram", "a " * 40),
    ]  # fmt: skip
    lines = models_command._lines(rows, width)
    assert width is None or all(len(line) <= width for line in lines)
    assert "smollm2-135m-instruct" in lines[1]
    assert ("slow, ~0.8/s" if width == 39 else "slow, ~0.8 tok/s") in lines[1]
    assert ("licence" in lines[0]) is (width is None or width == 119)
    assert ("note" in lines[0]) is (width is None or width >= 79)
