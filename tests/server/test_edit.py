"""POST /v1/edit: by code and by a model, and its errors."""

import threading

import pytest

from gguf_spec.protocols.edit import TEXT_MAX
from gguf_spec.server import edit as route
from gguf_spec.server.settings import Limits
from tests.server.conftest import ask, ask_text, serve_in_thread, serve_limited, until
from tests.support.hanging import for_ever

TEXT = "[a]\nport = 80\n\n[b]\nport = 81\n"


def edit(server, **fields):
    return ask(server, "POST", "/v1/edit", {"text": TEXT, "name": "a.ini"} | fields)


def test_a_change_by_code(server):
    answer = edit(server, instruction="set the port of the section [b] to 90").json()
    assert answer["text"] == TEXT.replace("81", "90")
    assert answer["hunks"] == [
        {"line": 5, "old": ["port = 81"], "new": ["port = 90"], "outside": False}
    ]
    assert (answer["way"], answer["refused"], answer["usage"]) == ("code", [], None)
    refused = edit(server, instruction="rename the key port to door", name="a.ini").json()
    assert "stands at 2 places" in refused["refused"][0]


@pytest.mark.full
def test_a_change_by_a_model_is_that_of_the_library(server, tales):
    """The bundled model does not edit: what it writes is the same in both ways, or refused."""
    from gguf_spec.errors import NoEditError

    body = {"instruction": "make it nicer", "scope": "2"}
    try:
        wanted = tales.edit(TEXT, "make it nicer", name="a.ini", scope=["2"])
    except NoEditError:
        reply = edit(server, **body)
        assert (reply.status, reply.code) == (400, "no_edit")
    else:
        answer = edit(server, **body).json()
        assert answer["text"] == wanted.text
        assert answer["usage"]["completion_tokens"] == wanted.stats.n_generated
    assert edit(server, **(body | {"max_tokens": 2})).code == "no_edit"


@pytest.mark.parametrize(("fields", "param", "code"), [
    ({"instruction": " "}, "instruction", "invalid_value"), ({}, "instruction", "invalid_value"), ({"instruction": 1}, "instruction", "invalid_value"),
    ({"instruction": "x", "text": ""}, "text", "invalid_value"), ({"instruction": "x", "text": None}, "text", "invalid_value"),
    ({"instruction": "x", "scope": "no"}, "scope", "invalid_value"), ({"instruction": "x", "scope": ["1-2", 3]}, "scope", "invalid_value"),
    ({"instruction": "x", "scope": "9"}, "scope", "invalid_value"),
    ({"instruction": "x", "temperature": "hot"}, "temperature", "invalid_value"), ({"instruction": "x", "text": "a b " * 9000}, "text", "context_length_exceeded"),
    ({"instruction": "rename a to b", "text": "a" * (TEXT_MAX + 1)}, "text", "invalid_value"),
])  # fmt: skip
def test_errors_name_the_field(server, fields, param, code):
    reply = edit(server, **fields)
    assert (reply.status, reply.param, reply.code) == (400, param, code)


def test_the_smaller_limit_ends_what_a_model_writes(tales):
    with serve_in_thread(tales, max_tokens=3) as one:
        for fields, n in (({}, 3), ({"max_tokens": 2}, 2), ({"max_tokens": 3}, 3)):
            reply = edit(one, instruction="make it nicer", scope="1-5", **fields)
            assert (
                reply.code == "no_edit" and f"after {n} tokens" in reply.json()["error"]["message"]
            ), reply.json()


def no_plan(*_arguments, **_options):
    raise AssertionError("a plan was made in this process")


def test_a_text_is_read_in_a_child_process(server, monkeypatch):
    """Its expressions would keep the event loop waiting, in any thread."""
    monkeypatch.setattr("gguf_spec.edit.EditPlan", no_plan)
    answer = edit(server, instruction="set the port of the section [b] to 90").json()
    assert answer["text"] == TEXT.replace("81", "90")
    monkeypatch.setattr(route, "_answer", no_plan)
    reply = edit(server, instruction="make it nicer", scope="2")
    assert reply.status == 200 or reply.code == "no_edit"


@pytest.fixture
def hasty(tales):
    with serve_limited(tales, Limits(plan_s=2.0)) as server:
        yield server


def test_a_text_that_takes_too_long_is_cut_off(hasty, monkeypatch):
    """Others are answered meanwhile, and the next edit, too."""
    server = hasty
    begun, replies, real = threading.Event(), [], server.app.helper.call

    def call(seconds, *given):
        begun.set()
        return real(seconds, *given)

    with monkeypatch.context() as patched:
        patched.setattr(server.app.helper, "call", call)
        patched.setattr(route, "_planned", for_ever)
        thread = threading.Thread(target=lambda: replies.append(edit(server, instruction="x")))
        thread.start()
        assert begun.wait(180)
        assert ask(server).status == 200
        assert ask_text(server, user="u" * 70_000).status == 200, "a conversion does not wait"
        thread.join()
    assert (replies[0].status, replies[0].code, replies[0].param) == (400, "too_complex", "text")
    assert "takes more than 2 s" in replies[0].json()["error"]["message"]
    set_port = "set the port of the section [b] to 90"
    until(lambda: edit(server, instruction=set_port).status == 200)
