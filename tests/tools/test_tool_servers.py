"""Tool servers (MCP): a good one by pipes and by HTTP, and those that die, hang, send junk or far too much."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from gguf_spec.errors import GgufSpecError, NotInstalledError
from gguf_spec.tool_servers import ToolServer, check, session, toolbox
from gguf_spec.tool_servers.toolbox import Result, Toolbox
from tests.support import children

pytest.importorskip("mcp")
pytestmark = pytest.mark.full
FILE = Path(__file__).parents[1] / "support" / "tool_server.py"
HANGS = "it did not answer in 2 s."
COMMAND = (sys.executable, str(FILE))


def boxed(*servers):
    return Toolbox([ToolServer(f"s{n}", **fields) for n, fields in enumerate(servers)])


@pytest.fixture(scope="module")
def box():
    one = boxed({"command": COMMAND, "env": {"GGUF_SPEC_TEST": "as said"}, "timeout": 30})
    one.find()
    yield one
    one.close()


def programs():
    """Return the children of the children of this process: the programs of tool servers."""
    own = psutil.Process().children()
    return [one for child in own for one in child.children(recursive=True)]


class TestGood:
    def test_its_tools(self, box):
        tools, notes = box.find()
        assert notes == []
        first = tools[0]
        assert first.function["function"]["name"] == "add"
        assert first.description == "Add two numbers."
        assert first.parameters["required"] == ["a", "b"]
        assert json.dumps([one.function for one in tools])

    def test_a_call(self, box):
        assert box.call("add", '{"a": 2, "b": 40}') == Result("42", is_error=False)

    def test_its_environment(self, box, tmp_path, monkeypatch):
        """What the config says and a few variables such as PATH; nothing else of this process."""
        assert box.call("note", json.dumps({"file": str(tmp_path / "a")})).text == "as said"
        monkeypatch.setenv("GGUF_SPEC_TEST", "a secret")
        other = boxed({"command": COMMAND})
        try:
            other.find()
            assert (
                other.call("note", json.dumps({"file": str(tmp_path / "a")})).text == "(no result)"
            )
        finally:
            other.close()

    @pytest.mark.parametrize(("name", "arguments", "text"), [
        ("add", '{"a": "x", "b": 1}', "Error executing tool add"),
        ("fails", "{}", "Error executing tool fails"),
        ("add", "[1]", "The arguments are not a JSON object."),
        ("add", "{", "The arguments are not a JSON object."),
        ("add", "[" * 100_000, "The arguments are not a JSON object."),
        ("no_such", "{}", "There is no tool no_such."),
        ("__class__", "{}", "There is no tool __class__."),
    ])  # fmt: skip
    def test_what_goes_wrong_is_a_result(self, box, name, arguments, text):
        result = box.call(name, arguments)
        assert result.is_error
        assert result.text.startswith(text)
        assert box.call("add", '{"a": 1, "b": 1}').text == "2"

    def test_a_long_result_is_cut(self, box):
        text = box.call("big", '{"n": 5000}', 1000).text
        assert text == "x" * 1000 + "\n(The first 1,000 of 5,000 characters.)"
        assert len(box.call("big", '{"n": 3000000}', 10**9).text) < toolbox.CHARS + 100

    def test_by_http(self):
        with children.Child([*COMMAND, "http"], stdout=-1, text=True) as child:
            url = child.stdout.readline().strip()
            box = boxed({"url": url})
            try:
                until_there(box)
                assert box.call("add", '{"a": 2, "b": 40}').text == "42"
                child.kill()
                child.wait()
                assert box.call("add", '{"a": 2, "b": 40}').is_error
                assert box.find().notes[0].startswith("Tool server s0: ")
            finally:
                box.close()
                child.kill()

    def test_two_servers_with_the_same_names(self):
        box = boxed(
            {"command": COMMAND, "only": ("add",)}, {"command": COMMAND, "only": ("add", "nothing")}
        )
        try:
            found = box.find()
            assert [(one.name, one.server) for one in found.tools] == [
                ("add", "s0"),
                ("s1_add", "s1"),
            ]
            assert found.notes == ["Tool server s1: it has no tool nothing."]
            assert box.call("s1_add", '{"a": 2, "b": 40}').text == "42"
            assert box.call("note", "{}").text == "There is no tool note.", "it is not in the list"
        finally:
            box.close()

    def test_the_program_ends_with_the_box(self):
        before = {one.pid for one in programs()}
        box = boxed({"command": COMMAND})
        box.find()
        own = [one for one in programs() if one.pid not in before]
        assert own
        box.close()
        assert not any(is_alive(one) for one in own)


def is_alive(program):
    return program.is_running() and program.status() != "zombie"


def until_there(box):
    for _ in range(200):
        if box.find().tools:
            return
        time.sleep(0.1)
    raise AssertionError(box.find().notes)


def test_only_the_child_loads_mcp():
    """It takes a second and 60 MB; not even a use of the tools loads it here."""
    code = f"""if True:
        import sys
        from gguf_spec.tool_servers import ToolServer
        from gguf_spec.tool_servers.toolbox import Toolbox
        box = Toolbox([ToolServer("s", {COMMAND!r})])
        assert box.find().tools
        box.close()
        assert not {{"mcp", "pydantic", "anyio", "httpx2"}} & {{*sys.modules}}"""
    children.run([sys.executable, "-c", code], check=True)


class TestBad:
    def test_one_that_dies_in_a_call(self, box):
        result = box.call("dies", "{}")
        assert result.is_error
        assert result.text == "The call failed: Connection closed. It wrote: the last words"
        assert box.call("add", '{"a": 1, "b": 1}').text == "2", "it is started again"

    def test_its_last_words_are_read_to_the_end(self, monkeypatch):
        """A thread reads them, which may come to it later than the end of the program."""

        class Dying(session._Session):
            async def _hold(self):
                with self._listening() as file:
                    file.write("the last words\n")

        def late(number, mode, *given, real=os.fdopen):
            if "r" in mode:
                time.sleep(0.3)
            return real(number, mode, *given)

        async def main():
            one = Dying(ToolServer("s", COMMAND))
            await one.task
            return one._said()

        monkeypatch.setattr(session.os, "fdopen", late)
        assert asyncio.run(main()) == " It wrote: the last words"

    def test_one_that_hangs_in_a_call(self):
        others = {one.pid for one in programs()}
        box = boxed({"command": COMMAND, "timeout": 1})
        try:
            box.find()
            own = [one for one in programs() if one.pid not in others]
            assert own
            result = box.call("hangs", "{}")
            assert result.text == "The call failed: it did not answer in 1 s. It was ended."
            assert not any(is_alive(one) for one in own)
            assert box.find().tools, "it is started again"
        finally:
            box.close()

    @pytest.mark.parametrize(("code", "note"), [
        ("import sys; sys.exit('Boo \\x1b[31m\\n\\n')", "it cannot be used: Connection closed. It wrote: Boo [31m"),
        ("input()", "it cannot be used: Connection closed."),
        ("import time; time.sleep(600)", HANGS),
        ("while 1: print('junk')", HANGS),
        ("while 1: print('x' * 10**6, end='')", HANGS),
        ("print('{}' * 10**6, flush=True); input(); input()", HANGS),
        ("import json\nwhile 1: print(json.dumps({'jsonrpc': '2.0', 'id': json.loads(input()).get('id'), 'result': {'tools': 7}}), flush=True)", "it cannot be used: "),
    ])  # fmt: skip
    def test_one_that_does_not_answer_well(self, code, note, monkeypatch, capfd):
        if note == HANGS:
            monkeypatch.setattr(toolbox, "START_S", 2.0)
        box = boxed({"command": (sys.executable, "-c", code)})
        try:
            tools, (told,) = box.find()
        finally:
            box.close()
        assert tools == []
        assert told.startswith(f"Tool server s0: {note}")
        assert len(told) < 800
        assert "Traceback" not in told
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize(("fields", "note"), [
        ({"command": ("no-such-program",)}, "it cannot be used: there is no program no-such-program."),
        ({"url": "http://127.0.0.1:9/mcp"}, "it cannot be used: All connection attempts failed."),
    ])  # fmt: skip
    def test_one_that_is_not_there(self, fields, note):
        box = boxed(fields)
        try:
            assert box.find() == ([], [f"Tool server s0: {note}"])
        finally:
            box.close()

    def test_one_with_far_too_many_tools(self):
        box = boxed({"command": (*COMMAND, "many", "3000")})
        try:
            tools, notes = box.find()
            assert len(tools) == toolbox.TOOLS
            assert notes == ["Tool server s0: 2,943 of its tools are left out: more than 64, or too large. Name those to use: tools = [...]."]  # fmt: skip
            assert all(len(one.name) <= 64 and one.name.replace("_", "").isalnum() for one in tools)
        finally:
            box.close()


class TestConfig:
    @pytest.mark.parametrize(("table", "message"), [
        ({}, "[mcp.x] needs either command, a program, or url, an address."),
        ({"command": "a", "url": "http://a"}, "[mcp.x] needs either command, a program, or url, an address."),
        ({"command": ["a"]}, "[mcp.x] command must be a text."),
        ({"command": " "}, "[mcp.x] command must be a text."),
        ({"command": "a", "args": "b"}, "[mcp.x] args must be a list of texts."),
        ({"command": "a", "args": [1]}, "[mcp.x] args must be a list of texts."),
        ({"command": "a", "env": {"A": 1}}, "[mcp.x] env must be a table of texts."),
        ({"command": "a", "timeout": 0}, "[mcp.x] timeout must be seconds."),
        ({"command": "a", "timeout": True}, "[mcp.x] timeout must be seconds."),
        ({"command": "a", "timeout": 1e9}, "[mcp.x] timeout must be seconds."),
        ({"command": "a", "comand": "a"}, "[mcp.x] has no key comand."),
        ({"command": "a", "headers": {}}, "[mcp.x] headers has no effect without url."),
        ({"url": "http://a", "args": []}, "[mcp.x] args has no effect without command."),
        ({"url": "file:///etc"}, "[mcp.x] url must begin with http:// or https:// and name a host."),
        ({"url": "http://me:secret@a/"}, "[mcp.x] url must begin with http:// or https:// and name a host."),
    ])  # fmt: skip
    def test_tables_that_are_wrong(self, table, message):
        with pytest.raises(GgufSpecError) as error:
            ToolServer.read("x", table)
        assert error.value.message == message
        assert error.value.hint

    def test_a_name_that_is_wrong(self):
        with pytest.raises(GgufSpecError, match="cannot name a tool server"):
            ToolServer.read("a b", {"command": "a"})

    def test_secrets_are_not_shown(self):
        one = ToolServer.read("x", {"command": "a", "env": {"KEY": "a secret"}})
        assert "secret" not in repr(one)
        assert "secret" not in repr(
            ToolServer.read("x", {"url": "http://a", "headers": {"KEY": "a secret"}})
        )

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setattr("gguf_spec.tool_servers.find_spec", lambda _: None)
        with pytest.raises(NotInstalledError) as error:
            check([ToolServer("x", ("a",))])
        assert "gguf-spec[mcp]" in error.value.hint

    def test_too_many(self):
        with pytest.raises(GgufSpecError, match="17 tool servers, more than 16"):
            check([ToolServer("x", ("a",))] * 17)
