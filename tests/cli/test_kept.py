"""`serve --keep`, `chat --keep` and `gguf-spec kept`."""

import json
import sys
import urllib.request

import pytest

from gguf_spec import kept
from gguf_spec.system import piece_folder
from tests.support.children import Child

QUESTION = "Tell me a long story about a king, a fox and a golden key in the deep forest. " * 4


@pytest.fixture
def folder(tmp_path):
    """A folder with two texts, as a program writes them."""
    folder = piece_folder.PieceFolder(tmp_path / "kept", 10**6)
    folder.reserve = 0
    assert folder.open()
    root = folder.name("", b"root")
    first = piece_folder.Piece(root, folder.name(root, b"1"), 64)
    assert folder.write(
        first, {"title": "Once upon\x1b[31m a time", "model": "one.gguf"}, [b"x" * 100]
    )
    for text in (b"2", b"3"):
        piece = piece_folder.Piece(first.name, folder.name(first.name, text), 10)
        assert folder.write(piece, {"model": "one.gguf"}, [b"y" * 100])
    return tmp_path / "kept"


def test_the_list(here, folder):
    shown = here("kept", env={"GGUF_SPEC_KEEP": str(folder)}, text=True)
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["id", "tokens", "size", "used", "model", "begins"]
    assert all("one.gguf" in line and " 74 " in line for line in lines[1:3])
    assert "\x1b" not in shown.stdout
    assert lines[-1].startswith(f"2 prompts in {folder}, ")
    found = json.loads(here("kept", "list", "--keep", folder, "--json").stdout)
    assert (found["n_prompts"], len(found["prompts"])) == (2, 2)
    assert found["prompts"][0]["n_tokens"] == 74


def test_an_empty_folder(here, tmp_path):
    shown = here("kept", "list", "--keep", tmp_path / "none", text=True)
    assert (shown.returncode, shown.stdout.split(" in ")[0]) == (0, "0 prompts")
    assert not (tmp_path / "none").exists()


def test_removing(here, folder):
    ids = [one.id for one in kept.kept_prompts(folder).prompts]
    gone = here("kept", "rm", ids[0], "--keep", folder, text=True)
    assert gone.stdout.startswith("1 prompt removed, ")
    assert [one.id for one in kept.kept_prompts(folder).prompts] == [ids[1]]
    assert len([*piece_folder.all_files(folder)]) == 2, "the other text needs the first part"
    wrong = here("kept", "rm", ids[0], "--keep", folder, text=True)
    assert wrong.returncode == 2
    assert "must be the id of a kept prompt" in wrong.stderr
    for args in ((), ("--all", "x")):
        assert here("kept", "rm", *args, "--keep", folder).returncode == 2
    assert b"add --yes" in here("kept", "rm", "--all", "--keep", folder).stderr
    (folder / "prompts" / "note").write_text("mine")
    done = json.loads(here("kept", "rm", "--all", "--yes", "--json", "--keep", folder).stdout)
    assert done["removed"] == 1
    assert not [*piece_folder.all_files(folder)]
    assert (folder / "prompts" / "note").exists()


@pytest.mark.parametrize("command", [("chat",), ("serve", "--port", "0")])
@pytest.mark.parametrize("wrong", ["12XB", "-5"])
def test_wrong_values(here, command, wrong):
    found = here(*command, "-m", "tales", f"--keep={wrong}", text=True)
    assert found.returncode == 2
    assert f"--keep is {wrong!r} but must be a folder, a size such as 20GB" in found.stderr


def test_the_variable_is_not_that_of_trim(here):
    """`models trim --keep` is a number; the variable names the folder of prompts."""
    found = here("models", "trim", "no-such", env={"GGUF_SPEC_KEEP": "/a/b"}, text=True)
    assert "--keep" not in found.stderr


def test_a_chat_goes_on_after_a_restart(here, tmp_path):
    args = ("chat", "-m", "tales", "--seed", "1", "-n", "8", "--json", "--no-server")
    said = []
    for keep in ((), ("--keep", str(tmp_path / "kept")), ("--keep", str(tmp_path / "kept"))):
        found = here(*args, *keep, stdin=QUESTION.encode())
        assert found.returncode == 0, found.stderr
        said.append(json.loads(found.stdout.splitlines()[0]))
    assert len({one["text"] for one in said}) == 1
    cached = [one["stats"]["n_cached"] for one in said]
    assert cached[:2] == [0, 0]
    assert cached[2] == said[2]["prompt_tokens"] - 1


@pytest.mark.full
@pytest.mark.parametrize("ends", ["TERM", "KILL"])
def test_a_server_goes_on_after_its_end(work, environment, tmp_path, ends):
    env = environment | {"GGUF_SPEC_KEEP": f"{tmp_path / 'kept'}:1GB", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "gguf_spec", "serve", "-m", "tales", "--port", "0", "-q"]
    answers = []
    for _ in range(2):
        with Child(command, stdout=-1, env=env, cwd=work) as server:
            url = server.stdout.readline().decode().split()[-1]
            body = {
                "messages": [{"role": "user", "content": QUESTION}],
                "seed": 1,
                "max_tokens": 8,
                "logprobs": True,
            }
            request = urllib.request.Request(
                f"{url}/v1/chat/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request) as reply:
                answers.append(json.load(reply))
            if ends == "KILL":  # what was written so far counts
                with urllib.request.urlopen(request):
                    pass
                while not kept.kept_prompts(tmp_path / "kept").n_prompts:
                    pass
                server.kill()
            else:
                server.terminate()
    first, second = answers
    assert second["choices"] == first["choices"]
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
    assert cached[0] == 0
    assert cached[1] >= (first["usage"]["prompt_tokens"] - 1 if ends == "TERM" else 64)
