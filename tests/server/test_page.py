"""The files of the page: headers, and allowed contents."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec.options import SAMPLING
from gguf_spec.server import app, serve_in_thread
from tests.server.conftest import ask, metrics

FILES = sorted(app.PATHS)
SCRIPTS = [path for path in FILES if path.endswith(".js")]


def text_of(path):
    return app.PATHS[path].read_text(encoding="utf-8")


def headers_of(reply):
    return {name.lower(): value for name, value in reply.headers.items()}


@pytest.mark.parametrize("path", FILES)
def test_a_file(server, path):
    reply = ask(server, path=path)
    headers = headers_of(reply)
    kind = {"": "html", ".css": "css", ".js": "javascript"}[Path(path).suffix]
    assert reply.status == 200
    assert reply.body.decode() == text_of(path)
    assert headers["content-type"] == f"text/{kind}; charset=utf-8"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["trusted-types"] == "'none'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "data:"
    assert policy["require-trusted-types-for"] == "'script'"


def test_a_file_that_the_browser_has_is_not_sent_again(server):
    tag = headers_of(ask(server, path="/page/main.js"))["etag"]
    assert headers_of(ask(server, path="/page/main.js"))["cache-control"] == "no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = ask(server, path="/page/main.js", headers={"If-None-Match": known})
        assert (again.status, again.body) == (304, b"")
        assert headers_of(again)["etag"] == tag
    assert ask(server, path="/page/main.js", headers={"If-None-Match": '"other"'}).status == 200
    assert headers_of(ask(server, path="/"))["etag"] != tag


def test_there_are_no_other_files(server):
    assert ask(server, path="/page/").status == 404
    assert ask(server, path="/page/../app.py").status == 404
    assert ask(server, path="/page/%2e%2e/app.py").status == 404


def test_the_files_are_one_page_for_the_metrics(server):
    ask(server, path="/page/main.js")
    assert not any("/page/" in name for name in metrics(server))


def test_the_page_needs_no_key(tales):
    with serve_in_thread(tales, api_key="open-sesame") as server:
        assert all(ask(server, path=path).status == 200 for path in FILES)
        assert ask(server, path="/v1/models").status == 401


def test_the_page_has_the_limit_of_the_server(tales):
    with serve_in_thread(tales, max_tokens=7) as server:
        assert ask(server, path="/v1/models").json()["data"][0]["max_tokens"] == 7


@pytest.mark.parametrize("path", FILES)
def test_a_file_causes_no_further_request(path):
    text = text_of(path)
    assert not re.search(r"(?:src|href|url|import|fetch)\s*[=(]?\s*[\"'(]*(?:https?:)?//", text)
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']|<style|style=|<script>", text), "inline code"


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_text_becomes_markup(path):
    never = r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|\beval\(|new Function|DOMParser|createContextualFragment|srcdoc"
    assert not re.search(never, text_of(path))


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_short(path):
    lines = text_of(path).splitlines()
    assert len(lines) <= 400
    if path != "/":
        assert max(map(len, lines)) <= 120


def test_the_imports_of_scripts_exist():
    """One way only: no script imports one that needs it."""
    imports = {
        path: {f"/page/{name}" for name in re.findall(r'from "\./([a-z_]+\.js)"', text_of(path))}
        for path in SCRIPTS
    }
    assert set().union(*imports.values()) | {"/page/main.js"} == set(SCRIPTS)
    order = []
    while len(order) < len(imports):
        free = [path for path in imports if path not in order and imports[path] <= {*order}]
        assert free, f"a circle among {imports.keys() - {*order}}"
        order += free


@pytest.mark.parametrize("name", [
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
])  # fmt: skip
def test_the_fields_of_sampling_are_those_of_the_server(name):
    """The same limits, and the default as placeholder."""
    field = re.search(rf'<input id="{name}"[^>]*>', text_of("/"))[0]
    given = dict(re.findall(r'([a-z]+)="([^"]*)"', field))
    rule = SAMPLING[name]
    assert given["placeholder"].split()[0] == str(getattr(gguf_spec.Sampling(), name))
    assert float(given["min"]) == rule.least
    assert rule.most is None or float(given["max"]) == rule.most
    assert (given["step"] == "1") == (rule.type == "integer")


def test_every_id_is_there():
    ids = re.findall(r'\bid="([^"]+)"', text_of("/"))
    assert len(ids) == len({*ids})
    used = {name for path in SCRIPTS for name in re.findall(r'\$\("([^"]+)"\)', text_of(path))}
    assert used <= {*ids}


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(
        w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for w, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_stand_out(scheme):
    """WCAG 2.2 AA: 4.5 to 1 for text, 3 to 1 for the edges of controls."""
    pairs = re.findall(
        r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", text_of("/page/page.css")
    )
    colours = {name: pair[scheme == "dark"] for name, *pair in pairs}

    def contrast(one, other):
        dark, light = sorted((_luminance(colours[one]), _luminance(colours[other])))
        return (light + 0.05) / (dark + 0.05)

    for ground in ("ground", "surface"):
        assert all(contrast(text, ground) >= 4.5 for text in ("ink", "soft", "drafted", "accent"))
        assert contrast("edge", ground) >= 3
    assert contrast("ink", "tint") >= 4.5
    assert contrast("soft", "tint") >= 4.5
    assert contrast("on-accent", "accent") >= 4.5
    assert contrast("bad", "bad-tint") >= 4.5


def test_headings_go_down_one_level_at_a_time():
    levels = [int(level) for level in re.findall(r"<h([1-6])", text_of("/"))]
    assert levels[0] == 1
    assert all(next_ <= level + 1 for level, next_ in pairwise(levels))
