"""Models by references: repositories of the hub, and what other programs hold."""

import json
from pathlib import Path

import pytest

from gguf_spec import errors, models
from gguf_spec.registry import hub as hub_module
from gguf_spec.registry.resolve import local_models, ollama_model, parse, quant_of, resolve

DIGEST = "ab" * 32
COMMIT = "c0ffee" + 34 * "0"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, set_hub):
    """An empty home folder."""
    for name in ("LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    set_hub(HF_HUB_CACHE=str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home/.cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def in_hub_cache(tmp_path, file, repo="someone/some-GGUF"):
    return put(tmp_path / "hub" / f"models--{repo.replace('/', '--')}/snapshots/{COMMIT}" / file)


def in_ollama(home, name="registry.ollama.ai/library/llama3.2/1b", digest=DIGEST):
    blob = put(home / ".ollama/models/blobs" / f"sha256-{digest}")
    manifest = home / ".ollama/models/manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + 64 * "0"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    return blob


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"), ("a.q8_0.gguf", "Q8_0"), ("x/UD/model-UD-IQ2_XXS.gguf", "IQ2_XXS"), ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-BF16-00001-of-00002.gguf", "BF16"), ("Q4_0.gguf", "Q4_0"), ("plain.gguf", ""), ("Qwen3-4B.gguf", ""), ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
    ],
)  # fmt: skip
def test_the_quantisation_in_a_file_name(file, quant):
    assert quant_of(file) == quant


@pytest.mark.parametrize(
    ("reference", "repo", "quant"),
    [
        ("someone/some-GGUF", "someone/some-GGUF", ""),
        ("someone/some-GGUF:q4_k_m", "someone/some-GGUF", "Q4_K_M"),
        ("hf.co/someone/some-GGUF:Q8_0", "someone/some-GGUF", "Q8_0"),
        ("https://huggingface.co/someone/some-GGUF", "someone/some-GGUF", ""),
    ],
)
def test_a_repository(reference, repo, quant):
    assert parse(reference) == (repo, quant)
    entry = resolve(reference)
    assert (entry.name, entry.repo, entry.revision, entry.parts, entry.path) == (reference, repo, "main", (), None)  # fmt: skip
    assert models.find(reference) is None
    with pytest.raises(errors.NotDownloadedError, match="is not on this disk"):
        models.path(reference)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", "hf:a/b/c.gguf"),
        ("https://huggingface.co/a/b/blob/v1/d/c%20e.gguf", "hf:a/b/d/c e.gguf@v1"),
        ("hf:https://huggingface.co/a/b/resolve/main/c.gguf", "hf:a/b/c.gguf"),
        ("huggingface.co/a/b/blob/main/c.gguf#top", "hf:a/b/c.gguf"),
        ("https://hf.co/a/b/tree/main", "a/b"),
        ("https://huggingface.co/a/b/tree/main/", "a/b"),
    ],
)
def test_the_address_of_a_file_of_the_hub(address, name):
    assert resolve(address) == resolve(name)


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("https://huggingface.co/a/b/blob/main/c.safetensors", "does not name a GGUF file", "write hf:"),
        ("https://example.org/a.gguf", "https://example.org/a.gguf is an address", "download the file"),
        ("file:///tmp/a.gguf", "file:///tmp/a.gguf is an address", "name its path"),
        ("nobody/some-GGUF/a.gguf", "there is no file", "did you mean hf:nobody/some-GGUF/a.gguf?"),
        ("nobody/some-GGUF/b/a.gguf", "there is no file", "did you mean hf:nobody/some-GGUF/b/a.gguf?"),
        ("tests/unit/a.gguf", "there is no file", "name a GGUF file"),  # a folder that exists
    ],
)  # fmt: skip
def test_what_is_nearly_a_reference(reference, message, hint, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(errors.ModelNotFoundError, match=message) as caught:
        resolve(reference)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "reference",
    ["models/x.gguf", "a/b/c", "./x", "../x", "a/..", "a/b:", "a/b:c/d", "/a/b", "a b/c", "hf.co/a", "a--b/c", "ollama:a", "ollama:../a", "ollama:", "C:/x", "a/b\n"],
)  # fmt: skip
def test_texts_that_are_not_references(reference):
    with pytest.raises(errors.ModelNotFoundError) as caught:
        resolve(reference)
    assert caught.value.hint


def test_a_repository_in_the_cache_of_the_hub(tmp_path):
    in_hub_cache(tmp_path, "some-Q8_0.gguf")
    path = in_hub_cache(tmp_path, "sub/some-Q4_K_M.gguf")
    in_hub_cache(tmp_path, "mmproj-Q4_K_M.gguf")
    for reference in ("someone/some-GGUF", "hf.co/Someone/some-gguf", "someone/some-GGUF:Q4_K_M"):
        entry = resolve(reference)
        assert (entry.repo, entry.revision) == ("someone/some-GGUF", COMMIT)
        assert models.find(reference) == path
    assert models.find("someone/some-GGUF:Q8_0").name == "some-Q8_0.gguf"
    assert models.find("someone/some-GGUF:Q2_K") is None
    assert models.remove("someone/some-GGUF:Q8_0") == 4
    assert models.find("someone/some-GGUF:Q8_0") is None


def test_a_split_model_in_the_cache_of_the_hub(tmp_path):
    for i in (1, 2):
        in_hub_cache(tmp_path, f"some-Q4_0-0000{i}-of-00002.gguf")
    assert len(resolve("someone/some-GGUF").parts) == 2
    assert models.find("some-Q4_0-00001-of-00002").name == "some-Q4_0-00001-of-00002.gguf"
    with pytest.raises(errors.ModelNotFoundError):
        resolve("some-Q4_0-00002-of-00002")


def test_a_model_of_lm_studio(home):
    path = put(home / ".lmstudio/models/maker/Some-4B-GGUF/Some-4B-Q4_K_M.gguf")
    for name in ("maker/Some-4B-GGUF", "maker/some-4b-gguf:q4_k_m", "some-4b-q4_k_m", "Some-4B-Q4_K_M.gguf"):  # fmt: skip
        assert models.find(name) == path
    with pytest.raises(errors.InvalidOptionError, match="was not downloaded"):
        models.remove("some-4b-q4_k_m")


def test_a_model_of_llama_cpp(home):
    path = put(home / ".cache/llama.cpp/maker_Some-4B-GGUF_Some-4B-Q4_K_M.gguf")
    assert models.find("maker/Some-4B-GGUF:Q4_K_M") == models.find(path.stem) == path


def test_models_of_ollama(home):
    blob = in_ollama(home)
    for name in ("ollama:llama3.2:1b", "llama3.2:1b", "Ollama:llama3.2:1b"):
        assert models.find(name) == blob
    own = in_ollama(home, "registry.ollama.ai/me/mine/latest", "cd" * 32)
    assert models.find("ollama:me/mine") == own
    hub = in_ollama(home, "hf.co/a/b-GGUF/Q4_K_M", "ef" * 32)
    assert models.find("ollama:hf.co/a/b-GGUF:Q4_K_M") == hub
    assert {one.name for one in local_models()} == {"ollama:llama3.2:1b", "ollama:me/mine:latest", "ollama:hf.co/a/b-GGUF:Q4_K_M"}  # fmt: skip
    with pytest.raises(errors.ModelNotFoundError, match=r"Ollama has no model llama3\.2 on this"):
        resolve("ollama:llama3.2")  # there is no tag `latest`


MANIFESTS = [
    b"", b"[]", b"{}", b'{"layers": 1}', b'{"layers": []}', b'{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
    b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../x"}]}',
    b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 5}]}', b"[" * 100_000, b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_bad_manifest(home, manifest):
    blob = in_ollama(home)
    (home / ".ollama/models/manifests/registry.ollama.ai/library/llama3.2/1b").write_bytes(manifest)
    assert ollama_model("llama3.2:1b") is None
    assert [one.name for one in local_models()] == [blob.name]


def test_a_name_of_models_yaml_has_priority(home):
    put(home / ".cache/llama.cpp/smollm2-360m.gguf")
    assert resolve("smollm2-360m").repo == "bartowski/SmolLM2-360M-Instruct-GGUF"


def listed(monkeypatch, files):
    """Let the hub's API list files: name -> size and sha256."""
    from types import SimpleNamespace as Record

    class FakeApi:
        def model_info(self, repo, files_metadata):
            assert (repo, files_metadata) == ("someone/some-GGUF", True)
            siblings = [
                Record(rfilename=name, size=size, lfs=sha and Record(sha256=sha))
                for name, (size, sha) in files.items()
            ]
            return Record(sha=COMMIT, siblings=siblings)

    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)


FILES = {
    "README.md": (5, None), "mmproj-some-Q4_K_M.gguf": (7, "aa" * 32), "some-Q8_0.gguf": (9, "bb" * 32), "some-Q4_K_M.gguf": (6, "cc" * 32),
    "BF16/some-BF16-00001-of-00002.gguf": (1, "dd" * 32), "BF16/some-BF16-00002-of-00002.gguf": (2, "ee" * 32), "../evil-Q5_0.gguf": (1, None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "chosen"),
    [
        ("someone/some-GGUF", ["some-Q4_K_M.gguf"]),
        ("hf.co/someone/some-GGUF:q8_0", ["some-Q8_0.gguf"]),
        (
            "someone/some-GGUF:BF16",
            ["BF16/some-BF16-00001-of-00002.gguf", "BF16/some-BF16-00002-of-00002.gguf"],
        ),
    ],
)
def test_the_file_that_is_downloaded(monkeypatch, reference, chosen):
    from gguf_spec.registry import download

    listed(monkeypatch, FILES)
    entry = download.locate(resolve(reference))
    assert entry.revision == COMMIT
    assert [(part.file, part.size_bytes, part.sha256) for part in entry.parts] == [(file, *FILES[file]) for file in chosen]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "reference", "said", "hint"),
    [
        (FILES, "someone/some-GGUF:Q2_K", "no file of the quantisation Q2_K", "Q4_K_M, Q8_0"),
        (FILES, "someone/some-GGUF:Q5_0", "no file of the quantisation Q5_0", "Q4_K_M, Q8_0"),
        ({"README.md": (5, None)}, "someone/some-GGUF", "has no GGUF file", "GGUF"),
    ],
)
def test_no_such_file(monkeypatch, files, reference, said, hint):
    listed(monkeypatch, files)
    with pytest.raises(errors.NotOnHubError, match=said) as caught:
        models.pull(reference)
    assert hint in caught.value.hint


def test_offline_nothing_is_listed(monkeypatch):
    monkeypatch.setattr(hub_module, "list_files", None)
    with pytest.raises(errors.NotDownloadedError):
        models.pull("someone/some-GGUF", offline=True)


def test_hf_before_a_repository_changes_nothing():
    for reference in ("someone/some-GGUF", "someone/some-GGUF:Q8_0"):
        assert resolve(f"hf:{reference}") == resolve(reference)


def test_models_of_other_programs_are_listed(home, tmp_path):
    """Once each, and without later parts of a split model."""
    put(home / ".lmstudio/models/me/mine-GGUF/mine-Q4_K_M.gguf")
    put(home / ".cache/llama.cpp/big-00001-of-00002.gguf")
    put(home / ".cache/llama.cpp/big-00002-of-00002.gguf")
    in_hub_cache(tmp_path, "some-Q4_K_M.gguf")
    found = models.list_local()
    assert sorted(one.path.name for one in found) == [
        "big-00001-of-00002.gguf", "mine-Q4_K_M.gguf", "some-Q4_K_M.gguf",
    ]  # fmt: skip
    assert all(models.find(one.name) == one.path for one in found)


def test_a_name_of_ollama_stays_in_its_folder(home):
    """Each part is a name: `..` would lead to other manifests."""
    in_ollama(home, "x/latest")
    in_ollama(home, "registry.ollama.ai/library/y/latest", "cd" * 32)
    assert (home / ".ollama/models/manifests/registry.ollama.ai/../x/latest").exists()
    assert ollama_model("../x") is None
    assert ollama_model("y")
