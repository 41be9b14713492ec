"""The page's routes for tools: who may list and call them, and that nothing else can."""

import sys
import threading

import pytest

from gguf_spec.server import serve_in_thread
from gguf_spec.server.settings import Limits
from gguf_spec.tool_servers import ToolServer
from tests.server.conftest import ask, serve_limited, until
from tests.tools.test_tool_servers import COMMAND, is_alive, programs

pytest.importorskip("mcp")
pytestmark = pytest.mark.full
CALL = {"name": "add", "arguments": '{"a": 2, "b": 40}', "most": 1000}
SERVER = ToolServer("s", COMMAND, timeout=30)


@pytest.fixture(scope="module")
def server(tales):
    with serve_in_thread(
        tales, tool_servers=[SERVER], cors_origins=["https://friend.example"]
    ) as one:
        yield one


def post(server, path="/page/tools", body=None, token=None, **headers):
    """Send a request as the page does, unless headers say something else."""
    given = {"Origin": server.url, "Content-Type": "application/json"}
    if token:
        given["Authorization"] = f"Bearer {token}"
    given = {name: one for name, one in (given | headers).items() if one is not None}
    return ask(server, "POST", path, {} if body is None else body, given)


def token_of(server):
    return server.page_url.partition("#tools=")[2]


def test_the_page_lists_and_calls(server):
    token = token_of(server)
    assert len(token) >= 32
    told = post(server, token=token).json()
    assert (told["offered"], told["notes"]) == (True, [])
    assert told["data"][0] | {"parameters": 0} == {"name": "add", "description": "Add two numbers.", "parameters": 0, "server": "s"}  # fmt: skip
    reply = post(server, "/page/tools/call", CALL, token)
    assert reply.json() == {"object": "tool.result", "output": "42", "is_error": False}


def test_without_the_token_there_is_no_list_and_no_call(server):
    for token in (None, "wrong", "ä", token_of(server)[:-1]):
        told = post(server, token=token and token.encode().decode("latin-1")).json()
        assert (told["offered"], told["data"]) == (True, [])
        assert told["notes"] == [
            "To use tools, open the page by the address that gguf-spec serve printed."
        ]
        reply = post(server, "/page/tools/call", CALL, token and token.encode().decode("latin-1"))
        assert (reply.status, reply.code) == (403, "no_tools")


@pytest.mark.parametrize("origin", [None, "null", "", "https://friend.example", "http://127.0.0.1:1", "http://127.0.0.1"])  # fmt: skip
@pytest.mark.parametrize("path", ["/page/tools", "/page/tools/call", "//page/tools/call", "/page/tools/call/"])  # fmt: skip
def test_another_origin_and_none_at_all_are_refused(server, path, origin):
    """Also one that may use the API, and with the token."""
    reply = post(server, path, CALL, token_of(server), Origin=origin)
    assert (reply.status, reply.code) == (403, "origin_not_allowed")


def test_an_api_key_takes_the_place_of_the_token(tales):
    with serve_in_thread(tales, tool_servers=[SERVER], api_key="k") as server:
        assert server.page_url == f"{server.url}/"
        assert post(server, "/page/tools/call", CALL).status == 401
        post(server, token="k")
        assert post(server, "/page/tools/call", CALL, "k").json()["output"] == "42"


def test_where_none_are_offered(tales):
    with serve_in_thread(tales) as server:
        assert server.page_url == f"{server.url}/"
        assert post(server).json() == {"object": "list", "data": [], "notes": [], "offered": False}
        reply = post(server, "/page/tools/call", CALL)
        assert (reply.status, reply.code) == (403, "no_tools")


@pytest.mark.parametrize(("body", "param"), [
    ({}, "name"), (CALL | {"name": 1}, "name"), (CALL | {"arguments": {}}, "arguments"), (CALL | {"most": "1"}, "most"),
    (CALL | {"most": True}, "most"),
])  # fmt: skip
def test_bodies_that_are_wrong(server, body, param):
    reply = post(server, "/page/tools/call", body, token_of(server))
    assert (reply.status, reply.param) == (400, param)


def test_only_tools_of_the_list_can_be_called(tales):
    one = ToolServer("s", COMMAND, only=("add",))
    with serve_in_thread(tales, tool_servers=[one]) as server:
        token = token_of(server)
        told = post(server, token=token).json()
        assert [tool["name"] for tool in told["data"]] == ["add"]
        for name in ("note", "hangs", "sh"):
            result = post(server, "/page/tools/call", CALL | {"name": name}, token).json()
            assert (result["is_error"], result["output"]) == (True, f"There is no tool {name}.")


def test_a_server_that_is_bad_stops_nothing(tales, monkeypatch, capfd):
    from gguf_spec.tool_servers import toolbox

    monkeypatch.setattr(toolbox, "START_S", 2.0)
    junk = ToolServer("junk", (sys.executable, "-c", "while 1: print('junk')"))
    with serve_in_thread(tales, tool_servers=[junk]) as server:
        told = post(server, token=token_of(server)).json()
        assert told["notes"] == ["Tool server junk: it did not answer in 2 s."]
        assert ask(server).status == 200
    assert capfd.readouterr().err == ""


def test_calls_that_hang_stop_nothing(tales):
    """Other requests are answered meanwhile, too many calls are refused, and the end does not wait."""
    others = {one.pid for one in programs()}
    tools = [ToolServer("s", COMMAND, timeout=600)]
    with serve_limited(tales, Limits(calls=2), tool_servers=tools) as server:
        token = token_of(server)
        post(server, token=token)
        body = {"name": "hangs", "arguments": "{}", "most": 10}
        answers = []

        def call():
            answers.append(post(server, "/page/tools/call", body, token))

        threads = [threading.Thread(target=call) for _ in range(2)]
        for one in threads:
            one.start()
        until(lambda: server.app.tools.n_running == 2)
        assert post(server, "/page/tools/call", body, token).status == 429
        assert ask(server).status == 200
        own = [one for one in programs() if one.pid not in others]
        server.close(grace=0)
    for one in threads:
        one.join()
    assert len(answers) == 2
    assert own and not any(is_alive(one) for one in own)
