"""`gguf-spec models drafts`, and the draft that commands find by themselves."""

import json
from dataclasses import replace

import pytest

from gguf_spec.runtime import draft_search
from tests.support import eagle, tiny


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a target, a draft in llama.cpp's cache, and one beside the target that does not fit."""
    tmp_path = tmp_path_factory.mktemp("home")
    (tmp_path / ".cache/llama.cpp").mkdir(parents=True)
    tiny.write(tmp_path / "big.gguf", tiny.llama(n_layer=20))
    tiny.write(tmp_path / ".cache/llama.cpp/small.gguf", tiny.llama())
    tiny.write(
        tmp_path / "other.gguf",
        tiny.llama(),
        tokens=[*tiny.TOKENS[:40], "another", *tiny.TOKENS[41:]],
    )
    return tmp_path


@pytest.fixture
def run(here, home):
    env = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "HF_HOME": str(home / "hf"),
        "XDG_CONFIG_HOME": str(home / ".config"),
    }
    return lambda *args, **more: here(*args, env=env | more, cwd=home)


@pytest.mark.full
def test_a_table_of_what_fits_and_what_does_not(run, home):
    result = run("models", "drafts", "./big.gguf")
    lines = result.stdout.decode().splitlines()
    assert (result.returncode, result.stderr) == (0, b"")
    assert lines[0].split() == ["draft", "gain", "why"]
    assert lines[1].startswith("small.gguf ") and "  ~" in lines[1], "the gain is an estimate"
    assert "it has the same vocabulary and has 12% of the target's size" in lines[1]
    assert next(line for line in lines if line.startswith("other.gguf")).endswith(
        "it has another tokenizer, with 99% common tokens, and has 12% of the target's size; used "
        f"after gguf-spec tune -m ./big.gguf -d {home / 'other.gguf'}"
    )
    assert lines[-2].split() == ["others", "why", "(--json", "lists", "them)"]
    assert lines[-1].split(maxsplit=1)[1] == (
        "it is not on this disk, so its vocabulary cannot be compared"
    )


def test_the_models_for_tests_draft_for_no_other_family(run, monkeypatch):
    """Seen with Qwen2.5-Coder: "tales 1.17 ... used after gguf-spec tune -d tales"."""
    judge = draft_search.judged_draft

    def translated(load, name, *rest):
        one = judge(load, name, *rest)
        return replace(one, translated=True) if name in ("tales", "other.gguf") else one

    monkeypatch.setattr(draft_search, "judged_draft", translated)
    shown = run("models", "drafts", "./big.gguf", "--json").stdout
    names = [one["name"] for one in json.loads(shown)["drafts"]]
    assert "tales" not in names and "other.gguf" in names


@pytest.mark.full
def test_json_has_all_of_them(run):
    data = json.loads(run("models", "drafts", "./big.gguf", "--json").stdout)
    by_name = {one["name"]: one for one in data["drafts"]}
    assert data["drafts"][0]["name"] == "small.gguf"
    assert by_name["smollm2-135m"] == {
        "name": "smollm2-135m", "path": None, "fits": False, "gain": None, "measured": False, "declared": False,
        "why": "it is not on this disk, so its vocabulary cannot be compared",
    }  # fmt: skip
    assert by_name["small.gguf"]["path"].endswith("small.gguf")


def test_the_draft_of_a_file_that_a_named_model_has(run, home):
    """By its name and size, or by the sha256 in its name, as in the store of Ollama."""
    size = (home / "big.gguf").stat().st_size
    text = "models:\n"
    for name, more in {"b": f"size_bytes: {size}, draft: s", "s": "size_bytes: 1000"}.items():
        of = f"repo: a/b, revision: {'a' * 40}, file: {'x/big' if name == 'b' else 's'}.gguf"
        text += f"  {name}: {{{of}, sha256: {'b' * 64}, tokenizer: t, {more}}}\n"
    (home / "mine.yaml").write_text(text)
    (home / "store").mkdir()
    copy = home / f"store/sha256-{'b' * 64}"
    copy.write_bytes((home / "big.gguf").read_bytes())
    for file in (home / "big.gguf", copy):
        words = ("models", "drafts", str(file), "--models-file", "mine.yaml", "--json")
        result = run(*words)
        assert not result.stderr, result.stderr
        one = next(one for one in json.loads(result.stdout)["drafts"] if one["name"] == "s")
        assert (one["fits"], one["declared"]) == (True, True)
        assert "gguf-spec models pull s" in one["why"]


def test_a_head_in_a_file_of_its_own(run, home):
    tiny.write(home / "eagle's.gguf", eagle.head(layers=(0, 1, 19)))
    lines = run("models", "drafts", "./big.gguf").stdout.decode().splitlines()
    assert lines[1].startswith("small.gguf ")
    line = next(line for line in lines if line.startswith("eagle's.gguf "))
    assert "it is an EAGLE-3 head for models with rows of 64 values" in line
    use = next(line for line in lines if line.startswith("To use a head in a file of its own: -d "))
    assert use.endswith("eagle'\"'\"'s.gguf'")


def test_the_declared_draft_of_a_model_that_is_on_the_disk(run):
    data = json.loads(run("models", "drafts", "tales", "--json").stdout)
    assert (data["drafts"][0]["name"], data["drafts"][0]["declared"]) == ("tales-draft", True)


def test_a_file_that_is_not_a_model_is_one_line_of_error(run):
    for name in ("nothing", "smollm2", "./small"):
        result = run("models", "drafts", name)
        assert result.returncode == 1
        assert len(result.stderr.decode().splitlines()) == 2


def test_generate_uses_the_draft_and_notes_it(run):
    words = "generate --raw -m ./big.gguf --threads 1 -n 3 -t 0 a --json"
    result = run(*words.split())
    assert json.loads(result.stdout)["draft"] == "small.gguf"
    assert result.stderr.decode().startswith(
        "Note: the draft is small.gguf: it has the same vocabulary"
    )


@pytest.mark.full
def test_the_defaults_of_an_entry_apply_without_options(run, home):
    preset = "{temperature: 0.0, seed: 7, max_tokens: 4}"
    (home / "mine.yaml").write_text(
        f"models:\n  mine: {{path: big.gguf, draft: ngram, prompt: text, sampling: {preset}}}\n"
    )
    args = ("generate", "-m", "mine", "--models-file", "mine.yaml", "--threads", "1", "a", "--json")
    answers = [
        json.loads(run(*args, *more).stdout)
        for more in ((), ("-n", "2"), ("--seed", "8", "-t", "1.5"))
    ]
    assert [len(one["tokens"]) for one in answers] == [4, 2, 4]
    assert [one["seed"] for one in answers] == [7, 7, 8]
    assert answers[1]["tokens"] == answers[0]["tokens"][:2] != answers[2]["tokens"][:2]
    assert json.loads(run(*args, GGUF_SPEC_MAX_TOKENS="3").stdout)["seed"] == 7
    assert len(json.loads(run(*args, GGUF_SPEC_MAX_TOKENS="3").stdout)["tokens"]) == 3
