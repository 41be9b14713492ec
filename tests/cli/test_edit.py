"""`gguf-spec edit`: what it reads, what it shows, and what it writes."""

import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_spec import Stats
from gguf_spec.cli.edit import _status
from gguf_spec.cli.text_file import files_with
from tests.cli.test_errors import check
from tests.support import children, tiny


def editor(path, new):
    """A model that writes one text behind the first line feed."""
    return tiny.write(path, tiny.one_text(f"\n{new}"), metadata={"llama.context_length": 100_000})


@pytest.fixture(scope="session")
def edit(here, work):
    editor(work / "edit.gguf", "abcXefgh")

    def run(*args, **options):
        words = ("edit", *args, "-m", "edit.gguf", "--threads", 1, "--ctx", 2048)
        return here(*words, **options)

    return run


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("abcdefgh\n", encoding="utf-8")
    return path


DIFF = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1 @@\n-abcdefgh\n+abcXefgh\n"


def test_without_a_terminal_the_changes_are_shown_and_not_written(edit, file):
    result = edit(file, "d to X")
    assert (result.stdout.decode(), result.returncode) == (DIFF, 0)
    assert result.stderr.decode() == (
        "1 line changed, 0 removed, 1 place.\nNothing was written; --yes writes the changes.\n"
    )
    assert file.read_text() == "abcdefgh\n"


def test_yes_writes_them(edit, file):
    file.chmod(0o640)
    result = edit(file, "d to X", "--yes")
    assert (result.stdout.decode(), result.returncode) == (DIFF, 0)
    assert file.read_text() == "abcXefgh\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [one.name for one in file.parent.iterdir()] == ["notes.txt"]


MENU = "[drinks]\ntea = 2\ncoffee = 3\n\n[cakes]\ntea = 4\n"


@pytest.fixture
def menu(tmp_path):
    path = tmp_path / "menu.ini"
    path.write_text(MENU, encoding="utf-8")
    return path


def test_a_value_and_a_rename_need_no_model(here, menu):
    result = here(
        "edit", menu, "set the tea of the section [cakes] to 5", "--yes", "-m", "no-such-model"
    )
    assert result.returncode == 0
    assert "without a model" in result.stderr.decode()
    assert menu.read_text() == MENU.replace("tea = 4", "tea = 5")
    assert here("edit", menu, "rename the key coffee to latte", "--yes").returncode == 0
    assert menu.read_text() == MENU.replace("tea = 4", "tea = 5").replace("coffee", "latte")


def test_what_is_doubtful_is_not_written_with_yes_alone(here, menu):
    result = here("edit", menu, "rename the key tea to chai", "--yes")
    said = result.stderr.decode()
    assert result.returncode == 1
    assert "Doubtful: the key tea stands at 2 places" in said
    assert menu.read_text() == MENU
    kept = re.search(
        r"The patch is (.*menu\.ini\.patch); the same command with --force writes it\.", said
    )
    assert "+chai = 2" in Path(kept[1]).read_text(encoding="utf-8")
    assert stat.S_IMODE(Path(kept[1]).stat().st_mode) == 0o600
    assert here("edit", menu, "rename the key tea to chai", "--yes", "--force").returncode == 0
    assert menu.read_text() == MENU.replace("tea", "chai")


def test_undo_and_redo(here, menu):
    check(here("edit", "--undo", menu), 1, "no change of")
    here("edit", menu, "rename the key coffee to latte", "--yes")
    menu.chmod(0o640)
    assert here("edit", "--undo", menu).returncode == 0
    assert menu.read_text() == MENU
    assert stat.S_IMODE(menu.stat().st_mode) == 0o640
    assert here("edit", "--undo", menu).returncode == 0
    assert menu.read_text() == MENU.replace("coffee", "latte")
    menu.write_text("mine\n", encoding="utf-8")
    check(here("edit", "--undo", menu), 1, "was changed since")
    assert menu.read_text() == "mine\n"
    check(here("edit", "--undo", menu, "x"), 2, "File 'x' does not exist")


def test_a_change_without_an_undo_says_so(here, menu):
    lost = {"XDG_STATE_HOME": "/proc/x"}
    result = here("edit", menu, "rename the key coffee to latte", "--yes", env=lost)
    assert result.returncode == 0 and menu.read_text() == MENU.replace("coffee", "latte")
    said = "menu.ini was written.\nThere is no undo: /proc/x/gguf-spec/edits cannot be written.\n"
    assert result.stderr.decode().endswith(said)
    check(here("edit", "--undo", menu, env=lost), 1, "no change of")


def test_only_the_named_lines_can_change(edit, file):
    text = "one\nabcdefgh\ntwo\n"
    file.write_text(text, encoding="utf-8")
    for words in ([f"{file}:2", "d to X"], [file, "d to X in line 2"]):
        result = edit(*words)
        assert result.stdout.decode().splitlines()[-4:] == [
            " one",
            "-abcdefgh",
            "+abcXefgh",
            " two",
        ]
        assert "Only line 2 can change." in result.stderr.decode()
    check(edit(f"{file}:7", "d to X"), 2, "the text does not have lines 7: it has 3 lines.")
    check(edit(file, "d to X", "--symbol", "no"), 2, "the text does not have part no.")
    check(edit("no-such-file:3", "d to X"), 2, "File 'no-such-file' does not exist.")


def test_the_bytes_of_other_lines_stay(here, tmp_path):
    path = tmp_path / "mixed.ini"
    old = b"\xef\xbb\xbf[a]\r\nport = 1\nx = \xe2\x80\x9cq\xe2\x80\x9d \t\r\ny = a\x0cb\xe2\x80\xa8c\nz = end"
    path.write_bytes(old)
    assert here("edit", path, "set port to 2", "--yes").returncode == 0
    assert path.read_bytes() == old.replace(b"port = 1\n", b"port = 2\n")
    path.write_bytes(b"a\rb\rc")
    check(here("edit", path, "set port to 2", "--yes"), 1, "with a carriage return alone")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_takes_the_patch(here, tmp_path):
    folder = tmp_path / "work/in here"
    folder.mkdir(parents=True)
    children.run(["git", "init", "-q"], cwd=tmp_path / "work")
    path = folder / "a.ini"
    for old in (
        b"[a]\r\nport = 1\r\nb = 2\r\n",
        b"[a]\nport = 1\nx = a\x0cb\xe2\x80\xa8c\rd",
        "port = 1\nä = 1\n".encode(),
    ):
        path.write_bytes(old)
        result = here("edit", path, "set port to 2", "--diff")
        (tmp_path / "patch").write_bytes(result.stdout)
        done = children.run(["git", "apply", tmp_path / "patch"], cwd=tmp_path / "work")
        assert done.returncode == 0, done.stderr
        assert path.read_bytes() == old.replace(b"port = 1", b"port = 2")


@pytest.mark.full
def test_each_change_is_asked_about(work, environment, menu):
    line = [sys.executable, "-m", "gguf_spec", "edit", str(menu), "rename the key tea to chai"]
    code, seen = children.at_terminal(line, typed=b"?\nn\ny\n", cwd=work, env=environment)
    shown = seen.decode()
    assert code == 0
    assert shown.index("2 lines changed, 0 removed, 2 places, without a model.") < shown.index(
        "(1/2) Take this"
    )
    assert "(2/2) Take this change?" in shown
    assert "leave the old lines" in shown
    assert menu.read_text() == MENU.replace("tea = 4", "chai = 4")
    assert "1 of 2 changes taken.\r\n" in shown
    for typed in (b"q\n", b"n\nn\n", b"r\nq\n", b"add the rest\nyes please\nno\nquit\n"):
        menu.write_text(MENU, encoding="utf-8")
        code, seen = children.at_terminal(line, typed=typed, cwd=work, env=environment)
        assert (code, menu.read_text()) == (0, MENU)
        assert b"Nothing was written." in seen and b"taken." not in seen


@pytest.mark.full
@pytest.mark.parametrize(("typed", "is_written"), [(b"n\ny\nn\n", False), (b"n\ny\ny\n", True)])
def test_half_a_rename_is_asked_about_again(work, environment, tmp_path, typed, is_written):
    path, old = tmp_path / "app.py", "def one():\n    pass\n\n\none()\n"
    path.write_text(old, encoding="utf-8")
    line = [sys.executable, "-m", "gguf_spec", "edit", str(path), "rename the function one to two"]
    _, seen = children.at_terminal(line, typed=typed, cwd=work, env=environment)
    assert b"With these changes alone two is not defined." in seen
    assert path.read_text() == (old[:-6] + "two()\n" if is_written else old)


@pytest.mark.full
def test_questions_can_be_split_and_ended(work, environment, tmp_path):
    path = tmp_path / "menu.ini"
    path.write_text("[a]\ntea = 1\ntea = 1\n", encoding="utf-8")
    line = [sys.executable, "-m", "gguf_spec", "edit", str(path), "replace tea with chai"]
    code, seen = children.at_terminal(line, typed=b"s\nn\ny\n", cwd=work, env=environment)
    assert (code, path.read_text()) == (0, "[a]\ntea = 1\nchai = 1\n")
    assert [n in seen for n in (b"(1/1)", b"(1/2)", b"(2/2)")] == [True] * 3
    old = path.read_text()
    for end in (b"\x04",):  # end of the input
        code, seen = children.at_terminal(line, typed=end, cwd=work, env=environment)
        assert (code, path.read_text()) == (130, old)
        assert b"Nothing was written." in seen
        assert b"Traceback" not in seen


@pytest.mark.few(1)
@pytest.mark.parametrize(("editor", "new"), [("false", "2"), ("true", "2"), ("sed -i s/2/7/", "7")])
def test_a_change_in_the_editor(work, environment, tmp_path, editor, new):
    path = tmp_path / "menu.ini"
    path.write_text("[a]\ntea = 1\n", encoding="utf-8")
    line = [sys.executable, "-m", "gguf_spec", "edit", str(path), "set tea to 2"]
    env = environment | {"EDITOR": editor, "VISUAL": editor}
    typed = b"e\n" if new == "7" else b"e\ny\n"
    code, seen = children.at_terminal(line, typed=typed, cwd=work, env=env)
    assert (code, path.read_text()) == (0, f"[a]\ntea = {new}\n"), seen
    assert (b"It was not changed." in seen) == (new == "2")


def test_json_has_what_was_refused(here, menu):
    result = here("edit", menu, "rename the key tea to chai", "--json", "--yes")
    one = json.loads(result.stdout)
    assert (result.returncode, one["written"], len(one["hunks"])) == (1, False, 2)
    assert "stands at 2 places" in one["refused"][0]
    assert menu.read_text() == MENU


@pytest.fixture
def two(tmp_path):
    """Two files with the same function."""
    paths = [tmp_path / name for name in ("store.py", "cart.py")]
    for path in paths:
        path.write_text("def total(a):\n    return a\n\n\nprint(total(1))\n", encoding="utf-8")
    return paths


def test_a_rename_in_several_files(here, two, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("print(1)\n", encoding="utf-8")
    result = here("edit", *two, other, "rename the function total to whole", "--yes")
    assert result.returncode == 0, result.stderr
    assert b"other.py stays as it is: nothing in it was named." in result.stderr
    new = "def whole(a):\n    return a\n\n\nprint(whole(1))\n"
    assert [one.read_text() for one in two] == [new, new]
    assert here("edit", "--undo", *two).returncode == 0
    assert "total" in two[0].read_text() and "total" in two[1].read_text()


@pytest.fixture
def project(tmp_path):
    """A function, a module that imports it, one that does not, and other folders."""
    files = {
        "shop/store.py": "def total(a):\n    return a\n",
        "shop/cart.py": "from .store import total\n\nprint(total(1))\n",
        "shop/notes.md": "total and store\n",
        "tests/test_store.py": "from shop.store import (\n    total,\n)\n\nassert total(1)\n",
        "tests/test_other.py": "total = 3\n",
        "node_modules/store.py": "from shop.store import total\n",
        ".venv/store.py": "from shop.store import total\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


RENAME = "rename the function total to whole"


def test_a_rename_names_the_other_files_with_the_name(here, project):
    store = project / "shop" / "store.py"
    result = here("edit", store, RENAME, "--yes")
    assert result.returncode == 0
    said = result.stderr.decode()
    assert "total also stands in 1 other file: " in said, "without a work tree, in its folder"
    assert "cart.py. To rename it there, name it, too." in said
    assert here("edit", "--undo", store).returncode == 0
    (project / ".git").mkdir()
    said = here("edit", store, RENAME, "--diff").stderr.decode()
    assert re.search(r"in 2 other files: \S+cart\.py, \S+test_store\.py\. To rename", said), said
    some = [project / "shop" / "cart.py", project / "tests" / "test_store.py"]
    assert "also stands" not in here("edit", store, *some, RENAME, "--diff").stderr.decode()
    assert "also stands" not in here("edit", store, RENAME, "--json").stderr.decode()
    local = "rename the parameter a to b"
    assert "also stands" not in here("edit", store, local, "--diff").stderr.decode()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_the_search_for_a_name_ends(project):
    """The work tree may be a whole home folder, and have files that are none."""
    (project / ".git").mkdir()
    os.mkfifo(project / "shop" / "pipe.py")
    (project / "shop" / "large.py").write_text("total = 1\n" + "#\n" * 500_000)
    store = project / "shop" / "store.py"
    names = {one.name for one in files_with("total", store)}
    assert names == {"cart.py", "test_store.py"}
    assert files_with("total", store, most=0) == set(), "the first folder has no source"


def test_a_file_that_imports_what_another_one_renames_is_renamed_with_it(here, project):
    names = ("shop/store.py", "shop/cart.py", "tests/test_store.py", "shop/sums.py")
    files = [project / one for one in names]
    files[3].write_text("from .store import total as sum_of\n\nprint(sum_of(1))\n")
    old = [one.read_text() for one in files]
    result = here("edit", *files, RENAME, "--yes")
    assert result.returncode == 0, result.stderr
    assert [one.read_text() for one in files] == [one.replace("total", "whole") for one in old]
    assert here("edit", "--undo", *files).returncode == 0
    alone = here("edit", files[1], RENAME, "--yes")
    assert alone.returncode == 1, "who renames it elsewhere is not known"
    assert files[1].read_text() == old[1]


def test_a_named_file_that_keeps_the_name_is_asked_about(here, project):
    cart, store = project / "shop" / "cart.py", project / "shop" / "store.py"
    cart.write_text("from . import store\n\nprint(store.total(1))\n")
    result = here("edit", store, cart, RENAME, "--yes")
    assert result.returncode == 1
    assert "total stands in cart.py, too, and is left there." in result.stderr.decode()
    assert "def total" in store.read_text()


def test_several_files_are_written_together_or_not_at_all(here, two):
    """The new name is there in the second file, so that the change is doubtful."""
    old = [one.read_text() for one in two]
    two[1].write_text(old[1] + "whole = 3\n")
    result = here("edit", *two, "rename the function total to whole", "--yes")
    assert result.returncode == 1
    said = result.stderr.decode()
    assert "Nothing was written. The patch is " in said, said
    assert two[0].read_text() == old[0] and two[1].read_text() == old[1] + "whole = 3\n"
    kept = Path(re.search(r"The patch is (.*?); ", said)[1])
    assert kept.read_text().count("--- a/") == 2


def test_a_model_sees_the_other_files(edit, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("abcdefgh\n", encoding="utf-8")
    result = edit(tmp_path / "a.txt", tmp_path / "b.txt", "d to X", "--yes", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["files"]
    assert [Path(one["file"]).name for one in found] == ["a.txt", "b.txt"]
    assert [one["written"] for one in found] == [True, True]
    assert [(tmp_path / one).read_text() for one in ("a.txt", "b.txt")] == ["abcXefgh\n"] * 2


def test_if_a_file_cannot_be_written_the_others_have_their_old_text(two):
    from gguf_spec.cli.edit import Change, write_changes
    from gguf_spec.cli.text_file import TextFile
    from gguf_spec.errors import GgufSpecError

    old = [one.read_bytes() for one in two]
    done = [Change(TextFile(one), None, {}, b"", "new\n") for one in two]
    two[1].write_bytes(b"changed by another program\n")
    with pytest.raises(GgufSpecError, match="another program has changed"):
        write_changes(done, None)
    assert [one.read_bytes() for one in two] == [old[0], b"changed by another program\n"]


def test_an_undo_that_cannot_be_taken_back_says_so(here, menu, monkeypatch):
    from gguf_spec.cli.text_file import Undo

    assert here("edit", menu, "rename the key coffee to latte", "--yes").returncode == 0
    monkeypatch.setattr(Undo, "keep", lambda *_: False)
    result = here("edit", "--undo", menu)
    assert b"again. There is no way back: " in result.stderr


def test_an_undo_finds_the_change_that_was_written(tmp_path, monkeypatch):
    """A process that is killed after it kept the old text, and before it wrote, leaves an entry."""
    from gguf_spec.cli.text_file import TextFile, Undo

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "a.txt"
    path.write_bytes(b"old\n")
    path.chmod(0o600)
    TextFile(path).write("new\n")
    Undo().keep(path.resolve(), b"new\n", b"never written\n")
    Undo().restore(path)
    assert path.read_bytes() == b"old\n"
    Undo(now=lambda: 1).restore(path)  # the clock was set back
    assert path.read_bytes() == b"new\n"
    Undo(now=lambda: 1).restore(path)
    assert path.read_bytes() == b"old\n"
    assert len(Undo().entries()) == 5, "each has a name of its own"
    (Undo().folder / f"{5:020}.text").write_bytes(b"of a killed process")
    Undo(most=2, now=lambda: 1).restore(path)
    assert len(list(Undo().folder.iterdir())) == 4
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_diff_only(edit, file):
    assert edit(file, "d to X", "--diff").stdout.decode() == DIFF
    assert file.read_text() == "abcdefgh\n"
    check(edit(file, "d to X", "--diff", "--yes"), 2, "--diff writes nothing")


def test_another_file(edit, file):
    other = file.with_name("new.txt")
    assert edit(file, "d to X", "--output", other).returncode == 0
    assert (file.read_text(), other.read_text()) == ("abcdefgh\n", "abcXefgh\n")
    result = edit(file, "d to X", "-o", "-")
    assert (result.stdout, result.stderr) == (b"abcXefgh\n", b"")


def test_json(edit, file):
    one = json.loads(edit(file, "d to X", "--json").stdout)
    assert (one["text"], one["diff"], one["written"]) == ("abcXefgh\n", DIFF, False)
    assert one["stats"]["n_generated"] > 5
    assert json.loads(edit(file, "d to X", "--json", "--yes").stdout)["written"] is True
    assert file.read_text() == "abcXefgh\n"


@pytest.mark.parametrize(("old", "new"), [
    (b"abcdefgh", b"abcXefgh"), (b"abcdefgh\r\n", b"abcXefgh\r\n"), (b"\xef\xbb\xbfabcdefgh\n", b"\xef\xbb\xbfabcXefgh\n"),
])  # fmt: skip
def test_the_way_it_is_stored_stays(edit, file, old, new):
    file.write_bytes(old)
    assert edit(file, "d to X", "--yes").returncode == 0
    assert file.read_bytes() == new


def test_a_link_stays_a_link(edit, file):
    link = file.with_name("link.txt")
    link.symlink_to(file)
    assert edit(link, "d to X", "--yes").returncode == 0
    assert link.is_symlink()
    assert file.read_text() == "abcXefgh\n"


def test_a_fence_around_the_complete_answer_is_removed():
    from gguf_spec.edit import EditPrompt

    def text(old, answer, reason="stop"):
        prompt = object.__new__(EditPrompt)
        prompt._old = old
        return prompt.text_of(
            type("Answer", (), {"text": answer, "finish_reason": reason, "tokens": ()})
        )

    assert text("a\n", "```python\nb\n```") == "b\n"
    assert text("a", "```\nb\nc\n```\n") == "b\nc"
    assert text("a\n", "b\n```\nc\n```") == "b\n```\nc\n```\n"
    assert text("```\na\n```\n", "```\nb\n```") == "```\nb\n```\n"
    # seen with Qwen2.5-Coder: a text in four backquotes ended with three
    assert text("a\n```\nb\n```\nc\n", "A\n```\nb\n```\nc\n```") == "A\n```\nb\n```\nc\n"
    assert text("a\n```\nb\n", "A\n```\nb\n```") == "A\n```\nb\n```\n"
    for answer, reason in ((" \n", "stop"), ("b", "length")):
        with pytest.raises(Exception, match="nothing was written"):
            text("a\n", answer, reason)


WRONG = {
    "binary": (b"a\0b", 1, "is not a text file in UTF-8"),
    "latin1": ("für".encode("latin-1"), 1, "is not a text file in UTF-8"),
    "empty": (b" \n", 1, "is empty"),
    "long": (b"a" * 3000, 2, "tokens but the context holds 2,048"),
    "huge": (b"a" * 4_000_001, 1, "which no context holds"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_files_that_cannot_be_edited(edit, file, name):
    data, code, said = WRONG[name]
    file.write_bytes(data)
    check(edit(file, "d to X", "--yes"), code, said)
    assert file.read_bytes() == data


@pytest.mark.parametrize(("n", "n_ctx"), [(4500, "4,399"), (50_000, "32,768")])
def test_a_long_file_gets_a_longer_context(edit, here, file, n, n_ctx):
    file.write_bytes(b"a" * n)
    result = here("edit", file, "d to X", "-m", "edit.gguf", "--threads", 1)
    check(result, 2, f"which has {n:,} tokens", f"the context holds {n_ctx}", "split the file")


def test_wrong_usage(edit, file, tmp_path):
    check(edit(tmp_path / "gone.txt", "x"), 2, "gone.txt")
    check(edit(tmp_path, "x"), 2, "is a directory")
    check(edit("-", "x"), 2, "A pipe cannot be edited")
    check(edit(file, " "), 2, "INSTRUCTION is empty")
    check(edit(file, "x", "-n", 0), 2, "--max-tokens is 0")
    check(edit(file, "x", "-t", -1), 2, "--temperature is -1")
    check(edit(file, "d to X", "-o", tmp_path), 2, "is a directory")
    check(edit(file, file, "d to X", "-o", "new.txt"), 2, "--output takes one file")
    check(edit(file, file, "d to X"), 2, "a file is named twice")
    check(edit(file), 2, "INSTRUCTION is missing")
    check(edit(file, file), 2, "is a file")
    check(edit(file, "d", "to", "X"), 2, "File 'd' does not exist", "in quotes")


def test_the_place_is_checked_before_a_model_is_loaded(here, file, tmp_path):
    words = ("edit", file, "d to X", "-m", "gone.gguf")
    check(here(*words, "-o", "-"), 1, "gone.gguf")
    missing = tmp_path / "no" / "new.txt"
    check(here(*words, "-o", missing), 1, f"{missing} cannot be written: No such file or directory")


def test_an_answer_that_is_cut_is_not_written(edit, file):
    check(
        edit(file, "d to X", "--yes", "-n", 3),
        1,
        "not complete after 3 tokens; nothing was written",
        "Hint: raise --max-tokens: the old text has 9 tokens.",
    )
    assert file.read_text() == "abcdefgh\n"


def test_a_file_that_changed_meanwhile_is_kept(file):
    from gguf_spec.cli.text_file import TextFile
    from gguf_spec.errors import GgufSpecError

    source = TextFile(file)
    file.write_text("other\n")
    with pytest.raises(GgufSpecError, match="another program has changed"):
        source.write("new\n")
    assert file.read_text() == "other\n"


def test_a_full_disk(file, monkeypatch):
    from gguf_spec.cli import text_file
    from gguf_spec.errors import GgufSpecError

    def full(*_):
        raise OSError(28, "No space left on device")

    one = text_file.TextFile(file)
    monkeypatch.setattr(text_file, "_replace", full)
    with pytest.raises(GgufSpecError, match="No space left") as caught:
        one.write("new\n")
    assert caught.value.hint.startswith("free disk space")
    assert file.read_text() == "abcdefgh\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(file):
    from gguf_spec.cli.text_file import TextFile
    from gguf_spec.errors import GgufSpecError

    source = TextFile(file)
    file.parent.chmod(0o500)
    with pytest.raises(GgufSpecError, match="cannot be written"):
        source.write("new\n")
    file.parent.chmod(0o700)


def test_nothing_changed(here, work, file):
    editor(work / "same.gguf", "abcdefgh")
    result = here("edit", file, "x", "-m", "same.gguf", "--threads", 1, "--ctx", 512, "--yes")
    said = b"The model changed nothing; use a clearer instruction or a larger model."
    assert (result.stdout, result.returncode) == (b"", 1)
    assert result.stderr == said + b" Nothing was written.\n"
    words = ("edit", file, "x", "-m", "same.gguf", "--threads", 1, "--ctx", 512)
    for options, shown in (
        (["--diff"], b""),
        (["--json"], b'"summary": "nothing was changed"'),
        (["-o", "-"], b"abcdefgh\n"),
        (["-o", work / "same.txt"], b""),
    ):
        result = here(*words, *options)
        assert result.returncode == 1 and shown in result.stdout, options
        assert said in result.stderr or options == ["--json"]
    # a value that is there already was asked for, and is there
    file.write_text("a = 1\n", encoding="utf-8")
    assert here("edit", file, "replace 1 with 1 everywhere", "--yes").returncode == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("typed", "written"), [(b"y\n", True), (b"n\n", False), (b"\n", False), (b"r\ny\n", True)]
)
def test_at_a_terminal_it_asks(edit, work, environment, file, typed, written):
    line = [sys.executable, "-m", "gguf_spec", "edit", str(file), "d to X", "-m", "edit.gguf", "--threads", "1", "--ctx", "2048"]  # fmt: skip
    code, seen = children.at_terminal(line, typed=typed, cwd=work, env=environment)
    shown = seen.decode()
    assert code == 0
    assert "tok/s" in shown
    assert "\x1b[31m-abcdefgh" in shown
    assert "\x1b[32m+abcXefgh" in shown
    n_asked = 1 + typed.count(b"r")
    assert shown.count("(1/1) Take this change? [y,n,a,q,s,e,r,?] [n]:") == n_asked
    assert shown.count("\x1b[32m+abcXefgh") == n_asked
    assert file.read_text() == ("abcXefgh\n" if written else "abcdefgh\n")


@pytest.mark.full
@pytest.mark.parametrize("show", [True, False])
def test_accepted_draft_tokens_are_green_on_request(work, environment, tmp_path, show):
    path = tmp_path / "same.txt"
    path.write_text("abcdefgh\n", encoding="utf-8")
    editor(work / "copy.gguf", "abcdefgh")
    line = [sys.executable, "-m", "gguf_spec", "edit", str(path), "x", "-m", "copy.gguf", "--threads", "1", "--ctx", "2048", "--diff"]  # fmt: skip
    code, seen = children.at_terminal(
        [*line, *(["--show-draft"] if show else [])], cwd=work, env=environment
    )
    assert code == 1, "nothing was changed"
    green = re.search(rb"\x1b\[32m[a-h]+\x1b\[0m", seen)
    assert bool(green) == show, seen


@pytest.mark.full
@pytest.mark.parametrize(("n", "shown"), [(13, "13 of about 13 tokens"), (14, "14 tokens")])
def test_a_text_longer_than_the_old_one_is_not_so_many_of_fewer(n, shown):
    assert _status(Stats(n_generated=n), 13).startswith(f"{shown},")


def test_ctrl_c_writes_nothing(work, environment, file):
    tiny.write(work / "long.gguf", tiny.one_text("\nabcdefgh", for_ever=True), metadata={"llama.context_length": 100_000})  # fmt: skip
    line = [sys.executable, "-m", "gguf_spec", "edit", str(file), "x", "-m", "long.gguf", "--yes", "-n", "90000", "--ctx", "99000", "-d", "none", "--threads", "1"]  # fmt: skip
    code, seen = children.at_terminal(line, ctrl_c_at=b"tok/s", cwd=work, env=environment)
    assert code == 130
    assert b"Traceback" not in seen
    assert b"Nothing was written." in seen
    assert file.read_text() == "abcdefgh\n"


def test_a_gain_is_shown_only_if_drafts_are_faster(monkeypatch, capsys):
    from gguf_spec.cli.edit import show_summary

    def summary(plain_s, rounds=20):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("FORCE_COLOR", "1")
        stats = Stats(n_generated=100, n_drafted=90, n_accepted=80, rounds=rounds, total_s=1.0)
        show_summary(stats, Stats(n_generated=8, rounds=8, total_s=plain_s) if plain_s else None)
        return capsys.readouterr().err

    assert "100 tokens, 100 tok/s, 4.0 times plain decoding (25.0 tok/s)" in summary(8 / 25)
    assert "times" not in summary(None)
    assert "times" not in summary(8 / 99)
    assert "2.0 times plain decoding" in summary(8 / 25, rounds=50), "no more than tokens a round"


@pytest.mark.parametrize("stats", [True, False])
def test_with_stats_the_summary_has_no_gain_of_its_own(edit, file, monkeypatch, stats):
    from gguf_spec.cli import edit as module

    timed = []
    monkeypatch.setattr(module, "_plain", lambda *_: timed.append(1))
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=terminal, stdout=None, stdin=None))
    edit(file, "d to X", *["--stats"] * stats)
    assert bool(timed) is not stats


@pytest.mark.parametrize(
    ("old", "has_one"),
    [("abc\n", False), ("a<|endoftext|>b\n", True), ("a<|im_start|>b\n", False)],
)
def test_a_text_with_the_name_of_an_end_token_does_not_end_there(tmp_path, old, has_one):
    """Seen with Qwen2.5-Coder: it copied `<|im_end|>` as the token, and half of the file was lost."""
    import gguf_spec
    from gguf_spec import Sampling
    from gguf_spec.edit import EditPrompt

    path = tiny.write(tmp_path / "one.gguf", tiny.llama(), metadata={"llama.context_length": 2048})
    with gguf_spec.load(path, "none", n_ctx=2048, threads=1) as llm:
        sampling = EditPrompt(llm, old, "x", "one.txt").limited(Sampling(seed=1), None)
    assert sampling.ignore_eos is has_one


def test_the_patch_of_a_clock_that_was_set_back_is_kept(tmp_path, monkeypatch):
    from gguf_spec.cli import text_file

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    undo = text_file.Undo(most=3)
    for i in range(6):
        path = undo.keep_patch(f"{i}", b"x")
        assert path.exists()
        os.utime(path, ns=(2**62, 2**62))  # all others are of the future
    assert len([*undo.folder.glob("*.patch")]) == 3


# ---- patches that real programs take

NAMES = [
    "w.ini", "sub/w.ini", "sub/sub/w.ini", "in here/b  c.ini", 'a"\\b.ini', "tab\there.ini",
    "line\nfeed.ini", "ü/文件.ini", "-w.ini", "w.ini 2026-01-01 10:00:00", "sub/ends with blank ",
]  # fmt: skip


def applied(command, patch, folder):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = children.run(command, input=patch, cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr, patch)


@pytest.mark.parametrize("is_tree", [False, True], ids=["plain", "tree"])
@pytest.mark.parametrize(
    "by", [["git", "apply"], ["patch", "-p1", "--binary"]], ids=["git", "patch"]
)
@pytest.mark.parametrize("start", [".", "sub"])
def test_patches_are_applied_where_they_were_made(here, tmp_path, by, start, is_tree):
    """Also where the current folder is below the work tree, or in none."""
    old, new = b"[a]\r\ntea = 1\r\nx = 1", b"[a]\r\nchai = 1\r\nx = 1"
    folder = tmp_path / "work" / start
    folder.mkdir(parents=True)
    if is_tree:
        children.run(["git", "init", "-q"], cwd=tmp_path / "work", check=True)
    for name in NAMES:
        if (by[0], start, is_tree, name[:4]) == ("patch", "sub", True, "sub/"):
            continue  # git would take sub/w.ini for w.ini, so it has its name from the work tree
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for given in (name, str(path)):
            path.write_bytes(old)
            words = ("edit", "--diff", "--", given, "replace tea with chai")
            result = here(*words, cwd=folder)
            assert result.returncode == 0, result.stderr
            applied(by, result.stdout, folder)
            assert path.read_bytes() == new, name


def test_a_patch_for_another_folder_says_where_to_apply_it(here, tmp_path):
    (tmp_path / "sub").mkdir()
    path = tmp_path / "w.ini"
    path.write_bytes(b"[a]\nport = 1\n")
    result = here("edit", "../w.ini", "set port to 2", "--diff", cwd=tmp_path / "sub")
    assert result.stdout.startswith(b"--- a/w.ini\n+++ b/w.ini\n@@")
    assert f"Apply the patch in the folder {tmp_path}.\n" in result.stderr.decode()
    applied(["git", "apply"], result.stdout, tmp_path)
    assert path.read_bytes() == b"[a]\nport = 2\n"


OPEN = b"\\ No newline at end of file\n"


@pytest.mark.parametrize(("old", "new", "body"), [
    (b"a", b"b", b"-a\n" + OPEN + b"+b\n" + OPEN),
    (b"a\n", b"a", b"-a\n+a\n" + OPEN),
    (b"a", b"a\n", b"-a\n" + OPEN + b"+a\n"),
    (b"a\r\nb", b"c\r\nb", b"-a\r\n+c\r\n b\n" + OPEN),
    (b"a\nb\n", b"c\nb\n", b"-a\n+c\n b\n"),
])  # fmt: skip
def test_a_patch_marks_an_open_end(tmp_path, old, new, body):
    from gguf_spec.edit import patch

    made = patch(old, new, "w")
    assert made.partition(b"@@\n")[2] == body
    (tmp_path / "w").write_bytes(old)
    applied(["git", "apply"], made, tmp_path)
    assert (tmp_path / "w").read_bytes() == new


def test_an_instruction_that_no_file_can_be_called(here, menu):
    """86 to 255 Chinese characters were looked for as a file, whose name is too long."""
    result = here("edit", menu, "把第一个设置改成别的东西" * 20, "--diff", "-m", "gone.gguf")
    check(result, 1, "gone.gguf")
    check(here("edit", "长" * 90, "x y"), 2, "does not exist")


def test_the_patch_of_long_names_is_kept(here, tmp_path):
    path = tmp_path / f"{'长' * 80}.ini"
    path.write_text(MENU, encoding="utf-8")
    result = here("edit", path, "rename the key tea to chai", "--yes")
    kept = re.search(r"The patch is (.*\.patch); the same", result.stderr.decode())
    assert b"+chai = 2" in Path(kept[1]).read_bytes()
    assert here("edit", path, "rename the key tea to chai", "--yes", "--force").returncode == 0
    assert here("edit", "--undo", path).returncode == 0
    assert path.read_text() == MENU
