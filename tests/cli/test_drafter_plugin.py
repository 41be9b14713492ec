"""A drafter of another distribution, found by its entry point and used from the command line."""

import json
import os
import sys
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Speculation, drafters
from gguf_spec.errors import InvalidOptionError, PluginError
from tests.support import children

# A whole plugin: it proposes the token that followed the last one in the prompt.
PLUGIN = '''
from gguf_spec.drafters import DrafterKind
from gguf_spec.speculative.drafters import Proposal


class Follower:
    """Proposes what followed the last token before."""

    name = "follower"
    priors = (0.5,)

    def begin(self, tokens):
        self.tokens = list(tokens)
        self.after = dict(zip(tokens, tokens[1:]))

    def propose(self):
        token = self.after.get(self.tokens[-1])
        return None if token is None else Proposal(token, (self.name, 0))

    def follow(self, token):
        self.tokens.append(token)

    def learn(self, start, tokens, rows):
        pass


KIND = DrafterKind("what followed the last token", make=lambda pair: [Follower()], lengths=(2,))
'''
ENTRIES = "[gguf_spec.drafters]\nfollower = follower_plugin:KIND\nbroken = broken_plugin:KIND\nodd = follower_plugin:Follower\n"
PROMPT = "Once upon a time there was a fox, and there was a king, and there was a"


def distribution(folder, name, module, code, entries):
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    distribution(tmp_path, "gguf-spec-follower", "follower_plugin", PLUGIN, ENTRIES)
    (tmp_path / "broken_plugin.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    drafters.installed.cache_clear()
    yield tmp_path
    drafters.installed.cache_clear()
    for name in ("follower_plugin", "broken_plugin"):
        sys.modules.pop(name, None)


def run(folder, *arguments):
    root = Path(gguf_spec.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{folder}"}
    command = [sys.executable, "-m", "gguf_spec", *arguments]
    return children.run(command, env=environment, capture_output=True, text=True, check=False)


def generate(folder, drafter, *more):
    common = (
        "-m",
        "tales",
        "--draft",
        "ngram",
        "--threads",
        "1",
        "-n",
        "24",
        "--seed",
        "3",
        "--json",
    )
    return run(folder, "generate", *common, "--drafter", drafter, *more, PROMPT)


@pytest.mark.full
def test_the_command_line_drafts_with_it(folder):
    done = generate(folder, "follower", "--fixed", "-k", "4")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert list(told["stats"]["drafters"]) == ["follower"]
    assert told["stats"]["drafters"]["follower"][0] > 0
    plain = json.loads(generate(folder, "auto", "-k", "0").stdout.splitlines()[-1])
    assert told["text"] == plain["text"]


def test_it_learns_and_is_verified(folder):
    spec = Speculation(drafter="follower")
    with gguf_spec.load("tales", "ngram", threads=1, speculation=spec) as llm:
        from gguf_spec.verify.checks import ways_of

        assert ways_of(llm)["follower"] == Speculation(2, drafter="follower", adaptive=False)
        llm.generate(PROMPT, gguf_spec.Sampling(seed=1, max_tokens=40), speculation=spec)
        counts = llm.snapshot().experiences["sampled"].chances.to_list()
        assert [one[:2] for one in counts if one[0] == "follower"] == [("follower", 0)]


@pytest.mark.full
def test_one_that_cannot_be_imported_names_its_distribution(folder):
    done = generate(folder, "broken")
    assert done.returncode != 0
    assert (
        "the drafter broken of the distribution gguf-spec-follower cannot be imported"
        in done.stderr
    )
    assert "no_such_module" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(
        PluginError, match="odd of the distribution gguf-spec-follower is no DrafterKind but type"
    ):
        drafters.kind_of("odd")


@pytest.mark.full
def test_nothing_is_imported_unless_its_name_is_asked_for(folder):
    assert generate(folder, "ngram").returncode == 0  # beside a broken plugin
    with pytest.raises(InvalidOptionError, match="hybrid, follower, broken, odd"):
        Speculation(drafter="nope")
    assert Speculation(drafter="follower").drafter == "follower"
    assert not {"follower_plugin", "broken_plugin"} & {*sys.modules}
    drafters.kind_of("follower")
    assert "follower_plugin" in sys.modules


@pytest.mark.failing_drafts
def test_one_that_fails_is_switched_off(folder):
    (folder / "broken_plugin.py").write_text(
        "from gguf_spec.drafters import DrafterKind\nKIND = DrafterKind('fails', make=lambda pair: 1 / 0)\n"
    )
    with gguf_spec.load("tales", "ngram", threads=1) as llm:
        answer = llm.generate(PROMPT, max_tokens=8, drafter="broken")
    assert "the broken drafter failed" in answer.stats.why_none
    assert answer.stats.n_generated == 8


def test_a_distribution_cannot_replace_one_of_the_table(tmp_path, monkeypatch):
    distribution(tmp_path, "evil", "evil", "1 / 0", "[gguf_spec.drafters]\nngram = evil:KIND\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    drafters.installed.cache_clear()
    assert "ngram" not in drafters.installed()
    assert drafters.kind_of("ngram") is drafters.DRAFTERS["ngram"]
    drafters.installed.cache_clear()


def test_the_words_and_the_check_come_from_the_table():
    from gguf_spec.options import DRAFT_WORDS, HEADS, SPECULATION

    assert list(DRAFT_WORDS) == ["auto", "mtp", "ngram", "none"]
    assert HEADS == ("mtp", "eagle3")
    assert SPECULATION["drafter"].choices == tuple(drafters.DRAFTERS)
    for name, kind in drafters.DRAFTERS.items():
        assert f"{name}: {kind.help}" in SPECULATION["drafter"].help
