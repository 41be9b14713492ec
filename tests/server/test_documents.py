"""The text of PDF files, and the limits of the child process that reads them."""

import json

import pytest

from gguf_spec.server import documents, pdf_text, serve_in_thread
from gguf_spec.server.settings import Limits
from tests.server.conftest import ask, ask_chat, serve_limited, until

PATH = "/v1/documents/text"


def pdf(*pages, trailer=b""):
    """Return a PDF file with these texts, a page each."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    kids = []
    for text in pages:
        stream = f"BT /F1 12 Tf 20 700 Td ({text}) Tj ET".encode("latin-1")
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream))
        kids.append(b"%d 0 R" % (len(objects) + 1))
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>"
            % len(objects)
        )
    objects[1] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(kids))
    body, places = b"%PDF-1.4\n", []
    for i, one in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (i, one)
    table = b"".join(b"%010d 00000 n \n" % at for at in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    end = b"trailer<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1,
        trailer,
        len(body),
    )
    return body + head + table + end


def post(server, body, headers=()):
    return ask(server, "POST", PATH, body, {"Content-Type": "application/pdf", **dict(headers)})


def test_the_text(server):
    reply = post(server, pdf("The fox sleeps.", "", "A bear."))
    assert reply.status == 200
    assert reply.json() == {"object": "document.text", "text": "The fox sleeps.\n\nA bear.", "pages": 3, "pages_read": 3}  # fmt: skip


def test_what_is_too_long_ends_at_a_page(tales):
    with serve_limited(tales, Limits(document_chars=40)) as server:
        assert post(server, pdf("The fox sleeps.", "A bear.", "x" * 30)).json()["pages_read"] == 2
        error = post(server, pdf("x" * 60)).json()["error"]
        assert error["message"] == "The PDF has a page with more than 40 characters."
    with serve_limited(tales, Limits(document_pages=1)) as server:
        assert post(server, pdf("One.", "Two.")).json() | {"object": 0} == {"object": 0, "text": "One.", "pages": 2, "pages_read": 1}  # fmt: skip


@pytest.mark.parametrize(("body", "message"), [
    (b"", "The body must be a PDF file, which begins with %PDF-."),
    (b"\x89PNG", "The body must be a PDF file, which begins with %PDF-."),
    (b"%PDF-1.4\nnothing", "The PDF cannot be read"),
    (pdf("x")[:200], "The PDF cannot be read"),
    (pdf(""), "The PDF has no text: its pages may be images."),
    (pdf("x", trailer=b"/Encrypt<</Filter/Standard/V 1/R 2/O(" + b"a" * 32 + b")/U(" + b"b" * 32 + b")/P -4>>/ID[(a)(b)]"), "The PDF has a password."),
])  # fmt: skip
def test_files_that_cannot_be_read(server, body, message):
    reply = post(server, body)
    assert (reply.status, reply.code) == (400, "invalid_document")
    assert reply.json()["error"]["message"].startswith(message)


def _sleeps(*_):
    import time

    time.sleep(600)


def _eats(*_):
    return pdf_text.PdfText(str(len(bytearray(8 << 30))))


@pytest.mark.parametrize(("read", "why"), [(_sleeps, "takes more than 2 s"), (_eats, "takes too much memory")])  # fmt: skip
def test_limits_of_time_and_memory(tales, monkeypatch, read, why):
    monkeypatch.setattr(documents, "pdf_text", read)
    limits = Limits(document_s=2.0 if read is _sleeps else 60.0)
    with serve_limited(tales, limits) as server:
        reply = post(server, pdf("x"))
        assert (reply.status, reply.code) == (400, "invalid_document")
        assert reply.json()["error"]["message"] == f"The PDF {why} to read."
        assert ask_chat(server).status == 200
        monkeypatch.undo()
        until(lambda: post(server, pdf("x")).json().get("text") == "x")  # by another child


def test_a_size_of_its_own(tales):
    with serve_limited(tales, Limits(document_bytes=10_000), body_bytes=1000) as server:
        assert post(server, pdf("x" * 3000)).status == 200
        reply = post(server, pdf("x" * 20_000))
        assert (reply.status, reply.code) == (413, "request_too_large")
        assert ask_chat(server, x="y" * 3000).status == 413


def test_without_pypdf_or_a_child(server, monkeypatch):
    monkeypatch.setattr(documents, "find_spec", lambda _: None)
    reply = post(server, pdf("x"))
    assert (reply.status, reply.code) == (501, "no_pdf")
    monkeypatch.undo()
    monkeypatch.setattr(documents.subprogram, "refusal", lambda: "no program")
    assert (
        post(server, pdf("x")).json()["error"]["message"]
        == "PDF files are not read here: no program."
    )


def test_the_key(tales):
    with serve_in_thread(tales, api_key="secret") as server:
        assert post(server, pdf("x")).status == 401
        assert post(server, pdf("x"), {"Authorization": "Bearer secret"}).status == 200


def test_the_description(server):
    described = json.loads(ask(server, path="/openapi.json").body)["paths"][PATH]["post"]
    assert "application/pdf" in described["requestBody"]["content"]
