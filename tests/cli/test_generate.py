"""`gguf-spec generate` by its complete output."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_spec.cli import cli
from gguf_spec.cli.error_text import option_name
from gguf_spec.errors import Option
from tests.cli.conftest import GENERATE
from tests.support import children


def out(result, code=0, stderr=b""):
    assert (result.stderr, result.returncode) == (stderr, code)
    return result.stdout.decode()


@pytest.mark.full
def test_text_goes_to_stdout_and_ends_with_a_newline(generate):
    assert out(generate("a")) == "bcdefghijkl\n"


def test_a_draft_changes_nothing(generate_here):
    """All pairs of a draft length, what drafts, a draft, and whether the length is fixed."""
    drafts = ("abc.gguf", "abx.gguf", "ever.gguf", "abx.gguf")
    for i, k in enumerate((0, 1, 4, 64)):
        for j, drafter in enumerate(("auto", "model", "ngram", "hybrid")):
            flags = ("-k", k, "--drafter", drafter, "-d", drafts[(i + j) % 4])
            fixed = ["--fixed"] * ((i // 2 + j) % 2)
            assert out(generate_here("a", *flags, *fixed)) == "bcdefghijkl\n", (flags, fixed)


def test_a_character_split_over_tokens_is_complete(generate_here):
    assert out(generate_here("a", "-m", "split.gguf")) == "é日\n"
    assert out(generate_here("a", "-m", "split.gguf", "-n", "3")) == "é\n"


def test_no_second_newline(generate_here):
    assert generate_here("d", "-m", "evil.gguf").stdout == b"\n"


def test_prompts(generate_here, work, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"xa\n")
    assert out(generate_here(stdin=b"xa")) == "bcdefghijkl\n"
    assert out(generate_here(stdin=b"xa\n")) == "bcdefghijkl\n"
    assert out(generate_here("-", stdin=b"xa\n")) == "bcdefghijkl\n"
    assert out(generate_here("-f", tmp_path / "p.txt")) == "bcdefghijkl\n"
    assert out(generate_here("-f", "-", stdin=b"xa\n")) == "bcdefghijkl\n"
    assert out(generate_here(stdin=b"\xff\xfea")) == "bcdefghijkl\n"
    assert out(generate_here("--", "-a")) == "bcdefghijkl\n"


def test_the_number_of_tokens(generate_here):
    assert out(generate_here("a", "-n", "1")) == "b\n"
    assert out(generate_here("a", "-n", "3", "-d", "abc.gguf", "-k", "8")) == "bcd\n"
    assert (
        out(generate_here("a", "-n", "-1", "-m", "ever.gguf", "--ctx", "16")) == "bcdefghijklabcd\n"
    )


def test_stop_strings(generate_here):
    assert out(generate_here("a", "--stop", "efg")) == "bcd\n"
    assert out(generate_here("a", "--stop", "xyz", "--stop", "cd", "-d", "abc.gguf")) == "b\n"
    assert out(generate_here("a", "--stop", "b")) == "\n"


def test_the_seed_gives_the_same_text(here):
    one, two, other = (
        out(here("generate", "Once", "--threads", 1, "-n", 20, "--seed", seed))
        for seed in (1, 1, 2)
    )
    assert one == two != other


def test_json(generate_here):
    one = json.loads(
        out(generate_here("xa", "--json", "-d", "abx.gguf", "-k", "3", "--fixed", "--seed", "5"))
    )
    names = "text reasoning tokens finish_reason prompt_tokens seed target draft stats"
    assert list(one) == names.split()
    shown = (one["text"], one["finish_reason"], one["prompt_tokens"], one["seed"])
    assert shown == ("bcdefghijkl", "stop", 2, 5)
    assert (len(one["tokens"]), one["target"], one["draft"]) == (11, "abc.gguf", "abx.gguf")
    stats = one["stats"]
    wanted = "n_generated n_drafted n_accepted acceptance rounds tokens_per_round tokens_per_s ttft_s total_s draft_s verify_s other_s"
    assert set(wanted.split()) <= set(stats)
    assert stats["n_generated"] == 11
    assert 3 <= stats["n_accepted"] < stats["n_drafted"]
    assert stats["acceptance"] == stats["n_accepted"] / stats["n_drafted"]
    assert sum(
        stats[name] for name in ("prompt_s", "draft_s", "verify_s", "other_s")
    ) == pytest.approx(stats["total_s"])
    assert 0 < stats["ttft_s"] <= stats["total_s"]


def test_json_is_one_line_and_can_hold_anything(generate_here):
    text = out(generate_here("a", "-m", "evil.gguf", "--json"))
    assert text.count("\n") == 1
    assert json.loads(text)["text"] == "\x1b]2;b\x07\rc\x9bd\n"


@pytest.mark.parametrize("flags", [["-d", "none"], ["-k", "0", "-d", "abc.gguf"]])
def test_json_without_a_draft(generate_here, flags):
    one = json.loads(out(generate_here("a", "--json", "-n", "4", *flags)))
    assert (
        one["draft"],
        one["finish_reason"],
        one["stats"]["n_drafted"],
        one["stats"]["rounds"],
    ) == (None, "length", 0, 4)


def test_logprobs(generate_here):
    one = json.loads(
        out(generate_here("a", "--json", "-n", "3", "--logprobs", "2", "-d", "abc.gguf"))
    )
    assert [place["text"] for place in one["logprobs"]] == ["b", "c", "d"]
    assert [place["token"] for place in one["logprobs"]] == one["tokens"]
    for place in one["logprobs"]:
        assert place["top"][0] == {name: place[name] for name in ("token", "text", "logprob")}
        assert place["logprob"] == place["top"][0]["logprob"] > place["top"][1]["logprob"]
    assert "logprobs" not in json.loads(out(generate_here("a", "--json", "-n", "3")))
    shown = generate_here("a", "-n", "2", "--logprobs", "1")
    assert shown.stdout == b"bc\n"
    assert re.fullmatch(r"( *\d+\.\d\d% '[bc]'\s+\d+\.\d\d% '[bc]'\n){2}", shown.stderr.decode())


def test_prefill_and_echo(generate_here, here):
    assert out(generate_here("a", "--prefill", "bc")) == "defghijkl\n"
    assert out(generate_here("a", "--prefill", "bc", "--echo", "-n", "2")) == "abcde\n"
    chat = ("generate", "hi", "-m", "abc.gguf", "-d", "none", "--threads", 1, "-t", 0, "-n", 2, "--chat")  # fmt: skip
    assert out(here(*chat, "--prefill", "ab")) == "cd\n"
    assert out(here(*chat, "--prefill", "ab", "--echo")) == "abcd\n"


def test_a_grammar_from_a_file(generate_here, tmp_path):
    file = tmp_path / "z.gbnf"
    file.write_text('root ::= "bxd" [a-z]*', encoding="utf-8")
    assert out(generate_here("a", "--grammar", file, "-n", "5")).startswith("bxd")
    assert out(generate_here("a", "--grammar", file, "-n", "5", "-d", "abc.gguf")) == out(
        generate_here("a", "--grammar", file, "-n", "5")
    )


def test_a_schema_as_text_and_from_a_file(generate_here, tmp_path):
    schema = '{"enum": ["fox", "hen"]}'
    file = tmp_path / "schema.json"
    file.write_text(schema, encoding="utf-8")
    one = out(generate_here("a", "--json-schema", schema))
    assert json.loads(one) in ("fox", "hen")
    assert out(generate_here("a", "--json-schema", f"@{file}", "-d", "abc.gguf", "-k", "3")) == one
    assert out(generate_here("a", env={"GGUF_SPEC_JSON_SCHEMA": schema})) == one


def test_stop_tokens_bias_and_ends(generate_here):
    ids = json.loads(out(generate_here("a", "--json")))["tokens"]
    assert out(generate_here("a", "--stop-token", ids[3], "--stop-token", ids[5])) == "bcd\n"
    assert out(generate_here("a", env={"GGUF_SPEC_STOP_TOKEN": str(ids[3])})) == "bcd\n"
    without_c = out(generate_here("a", "--logit-bias", f"{ids[1]}=-inf", "-n", "2", "--ignore-eos"))
    assert without_c.startswith("b")
    assert "c" not in without_c
    assert out(
        generate_here("a", env={"GGUF_SPEC_LOGIT_BIAS": f"{ids[1]}=-inf"}, stdin=b"")
    ) == out(generate_here("a", "--logit-bias", f"{ids[1]}=-inf"))
    whole = json.loads(out(generate_here("a", "--json", "--ignore-eos", "-n", "30")))
    assert (len(whole["tokens"]), whole["finish_reason"]) == (30, "length")


def test_drafts_from_the_text_only(generate_here, tmp_path):
    """The text repeats itself, and occurs in a reference text."""
    flags = ("a", "-m", "ever.gguf", "--ctx", "200", "-n", "60", "--json", "--fixed", "-k", "4")
    one = json.loads(out(generate_here(*flags, "-d", "ngram")))
    assert (one["draft"], one["text"]) == ("ngram", "bcdefghijkla" * 5)
    assert one["stats"]["n_accepted"] > 30
    (tmp_path / "text.txt").write_text("abcdefghijkl" * 2, encoding="utf-8")
    known = json.loads(
        out(generate_here(*flags, "-d", "ngram", "--draft-text", tmp_path / "text.txt"))
    )
    assert known["text"] == one["text"]
    assert known["stats"]["n_accepted"] > one["stats"]["n_accepted"]


@pytest.mark.parametrize("accept", ["coupled", "rejection", "block"])
def test_the_rules(here, accept):
    flags = ("generate", "Once upon a time", "--threads", 1, "-n", 30, "--seed", 3, "--json", "--fixed", "-k", 4, "--accept", accept)  # fmt: skip
    some, none = json.loads(out(here(*flags))), json.loads(out(here(*flags, "-d", "none")))
    assert some["stats"]["n_accepted"] > 5
    assert (some["text"] == none["text"]) == (accept == "coupled")


STATS = r"""speed   5 tokens at [\d,.]+ tok/s, the first after [\d,]+ ms \(prompt: 2 tokens in [\d,]+ ms\)
draft   {draft}
{gain}time    draft \d+%, verify \d+%, Python \d+%
seed    7
"""
GAIN = r"gain    \d+\.\d\d times plain decoding by the clock, \d+\.\d\d by measured costs\n"


def test_stats_go_to_stderr(generate_here):
    result = generate_here("xa", "-n", "5", "--stats", "--seed", "7")
    assert result.stdout == b"bcdef\n"
    assert re.fullmatch(
        STATS.format(draft="none: speculation is switched off", gain=""), result.stderr.decode()
    )
    result = generate_here(
        "xa", "-n", "5", "--stats", "--seed", "7", "-d", "abc.gguf", "-k", "2", "--fixed"
    )
    said = STATS.format(
        draft=r"3 of 3 tokens accepted \(100%; model 3 of 3\), 2.50 tokens a round", gain=GAIN
    )
    assert re.fullmatch(said, result.stderr.decode())
    json.loads(generate_here("xa", "-n", "5", "--stats", "--json").stdout)


def test_near_ties_are_in_the_stats():
    from gguf_spec import Stats
    from gguf_spec.cli.output import stats_lines

    assert "ties" not in stats_lines(Stats(n_generated=9), 1)
    assert (
        "ties    2 of 9 tokens were near ties: plain decoding may choose other tokens there (--strict decides them again)\n"
        in stats_lines(Stats(n_generated=9, n_near_ties=2), 1)
    )
    assert "decided again" in stats_lines(Stats(n_generated=9, n_near_ties=2, n_decided_again=2), 1)


def test_without_a_terminal_the_draft_is_not_coloured(generate_here):
    assert out(generate_here("a", "--show-draft", "-d", "abc.gguf")) == "bcdefghijkl\n"


def test_chat(here):
    words = ("generate", "hi", "-m", "abc.gguf", "-d", "none", "--threads", 1, "-n", 1, "--json")
    raw, one, system = (
        json.loads(out(here(*words, *more)))["prompt_tokens"]
        for more in (["--raw"], [], ["-s", "Be brief."])
    )
    assert raw == 2 < one < system


def test_options_from_the_environment(generate_here, here):
    values = {
        "MODEL": "abc.gguf",
        "DRAFT": "none",
        "MAX_TOKENS": "3",
        "RAW": "1",
        "TEMPERATURE": "0",
    }
    env = {f"GGUF_SPEC_{name}": value for name, value in values.items()}
    assert out(here("generate", "a", env=env)) == "bcd\n"
    assert out(here("generate", "a", "-n", "2", env=env)) == "bc\n"
    assert out(generate_here("a", env={"GGUF_SPEC_STOP": "d"})) == "bc\n"
    env = {"GGUF_SPEC_K": "2", "GGUF_SPEC_JSON": "1", "GGUF_SPEC_SEED": "9"}
    assert json.loads(out(generate_here("a", env=env)))["seed"] == 9
    bad = generate_here("a", env={"GGUF_SPEC_K": "many"})
    assert bad.stderr.startswith(b"Error: Invalid value for GGUF_SPEC_K: ")
    assert bad.returncode == 2


def test_a_missing_draft_is_noted_with_the_statistics(here, work, tmp_path):
    shutil.copy(work / "abc.gguf", tmp_path)  # what lies beside a model might draft for it
    words = ("generate", "a", "--raw", "-t", "0", "--threads", "1", "-m", "abc.gguf")
    assert out(here(*words, cwd=tmp_path)) == "bcdefghijkl\n"
    result = here(*words, "--stats", cwd=tmp_path)
    assert result.stdout == b"bcdefghijkl\n"
    assert result.stderr.startswith(
        b"Note: no draft on this disk makes abc.gguf faster: drafts come from the text only. To use one, set --draft to a model.\n"
    )


@pytest.mark.full
def test_verbose_shows_the_log_on_stderr(generate):
    result = generate("a", "-v")
    assert result.stdout == b"bcdefghijkl\n"
    assert b"llama_model_loader" in result.stderr


# ---- the reader, and Ctrl-C


@pytest.fixture
def endless(work, environment):
    """Start a generation that does not end by itself."""
    started = []

    def start(*args, **options):
        command = [sys.executable, "-m", "gguf_spec", *GENERATE, "-m", "ever.gguf", "a"]
        command += ["-n", "-1", "--ctx", "100000", *args]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(children.Child(command, cwd=work, env=environment, **(pipes | options)))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.full
def test_a_reader_that_closes_the_pipe(endless):
    child = endless()
    assert child.stdout.read(5) == b"bcdef"
    child.stdout.close()
    assert child.wait() in (0, -signal.SIGPIPE)
    assert child.stderr.read() == b""


@pytest.mark.full
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_no_stdout_at_all(generate, flags):
    result = generate("a", *flags, stdout=None, preexec_fn=lambda: os.close(1))
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.full
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_full_disk(generate, flags):
    with Path("/dev/full").open("wb") as full:
        result = generate("a", *flags, stdout=full)
    assert result.returncode == 1
    assert re.fullmatch(r"Error: .*No space left on device.*\nHint: .+\n", result.stderr.decode())


@pytest.mark.full
def test_ctrl_c_ends_cleanly_with_what_was_written(endless):
    child = endless(
        bufsize=0
    )  # a buffer would keep from `communicate` what it took beyond the eight bytes
    start = child.stdout.read(8)
    child.send_signal(signal.SIGINT)
    rest, stderr = child.communicate()
    assert (child.returncode, stderr) == (130, b"")
    text = (start + rest).decode()
    assert text.endswith("\n")
    assert ("bcdefghijkla" * len(text)).startswith(text.rstrip("\n"))


@pytest.mark.full
def test_ctrl_c_leaves_one_json_object(endless):
    for patience in (
        0.3,
        3,
        30,
    ):  # nothing shows when the generation has begun; before that there is no object
        child = endless("--json", "-v")
        while (
            b"reserve took" not in child.stderr.readline()
        ):  # the last thing llama.cpp says before it decodes
            assert child.poll() is None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate()
        assert child.returncode == 130
        assert b"Traceback" not in stderr
        if stdout:
            break
    one = json.loads(stdout)
    assert one["finish_reason"] == "cancelled"
    assert ("bcdefghijkla" * len(one["tokens"])).startswith(one["text"])


@pytest.mark.full
def test_ctrl_c_still_shows_the_stats(endless):
    child = endless("--stats")
    child.stdout.read(3)
    child.send_signal(signal.SIGINT)
    assert b"speed " in child.communicate()[1]


def test_a_full_context_stops_or_shifts(generate_here):
    stopped = generate_here("a", "-m", "ever.gguf", "--ctx", "64", "-n", "300")
    assert len(stopped.stdout.decode().strip()) < 64
    shifted = generate_here(
        "a", "-m", "ever.gguf", "--ctx", "64", "-n", "300", "--overflow", "shift"
    )
    text = shifted.stdout.decode().strip()
    assert (shifted.returncode, shifted.stderr, len(text)) == (0, b"", 300)
    assert text in "abcdefghijkl" * 30
    wrong = generate_here("a", "--overflow", "drop")
    assert wrong.returncode == 2
    assert (
        wrong.stderr.decode()
        == "Error: --overflow is 'drop' but must be stop or shift.\nHint: omit --overflow to use its default.\n"
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("generate", "Why", "is", "the sky"), "gguf-spec generate takes one PROMPT, but 'is the sky' follows 'Why'.\nHint: write it in quotes: gguf-spec generate 'Why is the sky'."),
        (("generate", "--verbose", "True", "hi"), "'hi' follows 'True'.\nHint: a switch such as --verbose takes no value: leave True out."),
        (("serve", "smollm2"), "gguf-spec serve takes no text, but there is 'smollm2'.\nHint: write a model as gguf-spec serve --model smollm2."),
        (("generate", "--seed", "-1", "hi"), "--seed is -1 but must be a whole number from 0 to 2**64 - 1.\nHint: omit --seed for a random seed."),
    ],
)  # fmt: skip
def test_usual_slips_are_answered_with_what_to_type(here, typed, said):
    result = here(*typed, text=True)
    assert result.returncode == 2
    assert result.stderr.endswith(f"{said}\n")


def test_a_counted_switch_has_no_value_in_a_hint():
    assert option_name(Option("verbose", True), cli.commands["generate"]) == "--verbose"
