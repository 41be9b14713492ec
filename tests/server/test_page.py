"""The page at `/`: the headers it comes with, and what somebody sees and hears who uses it in Chromium."""

import base64
import hashlib
import json
import re
import shutil
import time

import pytest

import gguf_spec
from gguf_spec.server import app, serve_in_thread
from tests.server import browser
from tests.server.browser import ENTER, ESCAPE, RELEASE, SHIFT, TAB, WIDTHS, Page
from tests.server.conftest import ask, until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)",
)


def test_the_page(server):
    reply = ask(server, path="/")
    html = reply.body.decode()
    headers = {name.lower(): value for name, value in reply.headers.items()}
    assert reply.status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    for script in re.findall(r"<script\b[^>]*>(.*?)</script>", html, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", html), (
        "the policy forbids handlers in attributes"
    )
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", html), (
        "a request to somewhere else"
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", html), (
        "text of the model could become markup"
    )


def test_the_page_names_the_default_temperature():
    html = app._PAGE.read_text(encoding="utf-8")
    assert re.search(r'id="temperature"[^>]*placeholder="([^"]*)"', html)[1] == str(
        gguf_spec.Sampling().temperature
    )


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(
        w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for w, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_stand_out(scheme):
    """WCAG 2.2 AA: 4.5 to 1 for text, 3 to 1 for the edges of controls."""
    blocks = re.findall(r":root \{(.*?)\}", app._PAGE.read_text(encoding="utf-8"), re.DOTALL)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", blocks[scheme == "dark"]))

    def contrast(one, other):
        dark, light = sorted((_luminance(colours[one]), _luminance(colours[other])))
        return (light + 0.05) / (dark + 0.05)

    for ground in ("ground", "surface"):
        assert all(contrast(text, ground) >= 4.5 for text in ("ink", "soft", "drafted"))
        assert contrast("edge", ground) >= 3
        assert contrast("accent", ground) >= 3
    assert contrast("ink", "tint") >= 4.5
    assert contrast("on-accent", "accent") >= 4.5
    assert contrast("bad", "bad-tint") >= 4.5


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    one = browser.start(CHROMIUM, DRIVER, tmp_path_factory.mktemp("chromium"))
    yield one
    one.quit()


@pytest.fixture(scope="module")
def drafting():
    """A server whose draft always drafts, whatever the machine is busy with."""
    speculation = gguf_spec.Speculation(k=4, adaptive=False)
    with (
        gguf_spec.load("tales", threads=1, speculation=speculation) as llm,
        serve_in_thread(llm) as server,
    ):
        yield server


@pytest.fixture
def page(request, driver):
    """The page of the server that the test's mark names; nothing may be asked of others, nor the console be told of a problem."""
    server = request.getfixturevalue(getattr(request, "param", "drafting"))
    driver.get("about:blank")
    driver.get_log("browser"), driver.get_log("performance")
    one = Page(driver, server.url)
    until(lambda: one.text("#model"))
    assert set(one.requests()) - {"data:,", "about:blank"} == {
        f"{server.url}/",
        f"{server.url}/v1/models",
    }
    yield one
    assert all(url.startswith(f"{server.url}/") or url == "data:," for url in one.requests())
    assert not one.complaints()


@needs_browser
class TestChat:
    def test_streams_with_numbers_that_move(self, page):
        page.set(seed=3, max_tokens=400)
        page.say("Tell me of a fox.")
        until(lambda: page.text(".said"))
        seen = []
        look = """const see = (one) => document.querySelector(one)?.textContent;
            return document.querySelector("[aria-busy=true]") && [".said", "#speed", "#accepted", "#told"].map(see)"""
        while moment := page.script(look):  # all of one moment
            seen.append(moment)
            time.sleep(0.02)
        until(page.idle)
        assert len({text for text, *_ in seen}) > 3, "the text does not stream"
        assert len({speed for _, speed, *_ in seen}) > 1, "the speed does not move"
        assert len({accepted for _, _, accepted, _ in seen}) > 1, "the acceptance does not move"
        assert {told for *_, told in seen} <= {"Answering."}, "a screen reader hears every token"
        assert page.text("#told").startswith(f"Answer: {page.text('.said')}")
        assert re.fullmatch(r"[\d,.]+", page.text("#speed"))
        assert re.fullmatch(r"\d+ %", page.text("#accepted"))
        assert re.fullmatch(r"\d\.\d\d", page.text("#per_pass"))
        assert re.fullmatch(r"[\d.]+ m?s", page.text("#first"))
        assert re.fullmatch(r"\d+\.\d\d×", page.text("#speedup"))
        assert page.count(".said .drafted") > 5
        assert (
            page.script(
                "return getComputedStyle(document.querySelector('.said .drafted')).textDecorationLine"
            )
            == "underline"
        )

    def test_colours_what_was_accepted_and_nothing_else(self, page):
        page.set(seed=5, max_tokens=60, temperature=0)
        page.script(
            "const get = fetch; window.fetch = async (...all) => { const got = await get(...all); window.kept = got.clone().text(); return got }"
        )
        said = page.answer("Tell me of a bear.")
        body = page.bodies()[0]
        assert (body["seed"], body["max_tokens"], body["temperature"]) == (5, 60, 0)
        pieces = [
            json.loads(line[6:])
            for line in page.script("return kept").split("\n\n")
            if line.startswith("data: {")
        ]
        parts = [part for piece in pieces for part in piece.get("speculation", {}).get("text", [])]
        assert said == "".join(text for text, _ in parts)
        assert "".join(page.texts(".said .drafted")) == "".join(
            text for text, accepted in parts if accepted
        )
        usage = pieces[-1]["usage"]
        assert f"{usage['completion_tokens']} tokens" in page.text(".cost")
        assert f"of {usage['speculation']['drafted']} drafted tokens accepted" in page.text(".cost")

    def test_remembers_and_forgets(self, page):
        page.set(max_tokens=20, system="You are brief.")
        first = page.answer("One.")
        page.answer("Two.")
        messages = page.bodies()[-1]["messages"]
        assert [(one["role"], one["content"]) for one in messages] == [
            ("system", "You are brief."), ("user", "One."), ("assistant", first), ("user", "Two.")
        ]  # fmt: skip
        page.find("#new").click()
        assert page.focus == "prompt"
        assert page.count(".turn") == 0
        assert page.shows("#empty")
        page.answer("Three.")
        assert [one["content"] for one in page.bodies()[-1]["messages"]] == [
            "You are brief.",
            "Three.",
        ]

    def test_moves_no_more_than_asked(self, page):
        """The caret blinks, but not where less motion is asked for."""
        caret = "document.querySelector('main').innerHTML = '<div class=run aria-busy=true><div class=said></div></div>';"
        caret += "return getComputedStyle(document.querySelector('.said'), '::after').animationName"
        assert page.script(caret) == "blink"
        page.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]},
        )
        assert page.script(caret) == "none"

    def test_text_stays_text(self, page):
        page.set(max_tokens=4)
        page.answer("<b id=bold>x</b><img src=x>")
        assert page.text(".asked") == "<b id=bold>x</b><img src=x>"
        assert page.count("#bold, main img") == 0

    def test_both_speeds_side_by_side(self, page):
        page.set(seed=7, max_tokens=100)
        page.answer("Tell me of a hen.")
        assert page.text(".again") == "Again without the draft"
        page.find(".again").click()
        assert page.focus == "prompt"
        until(lambda: page.shows(".difference"), 60)
        on, off = page.bodies()
        assert off == on | {"speculation": "off"}
        assert page.texts(".run h3") == ["With the draft", "Without the draft"]
        assert page.count(".run:first-child .drafted") > 0
        assert page.count(".run:last-child .drafted") == 0
        left, right = page.script(
            "return [...document.querySelectorAll('.run')].map((one) => one.getBoundingClientRect().top)"
        )
        assert left == right, "not side by side"
        rows = page.texts(".difference td:last-child")
        assert [re.fullmatch(r"([\d,]+) tokens/s", row) is not None for row in rows] == [True, True]
        assert re.fullmatch(
            r"\d+\.\d\d times as fast with the draft, the (same text|texts part after \d+ characters)\.",
            page.text(".difference p"),
        )
        assert page.text("#told") == page.text(".difference p")
        assert page.count(".again") == 0

    def test_the_switch(self, page):
        page.set(seed=7, max_tokens=40)
        page.press(TAB, TAB)  # Send, then the switch
        assert page.focus == "draft"
        page.press(" ")
        page.find("#prompt").click()
        page.answer("Tell me of a hen.")
        assert page.bodies()[-1]["speculation"] == "off"
        assert page.count(".said .drafted") == 0
        assert "speculation is switched off" in page.text(".cost")
        assert page.text("#accepted") == "–"
        page.find(".again").click()
        until(lambda: page.shows(".difference"), 60)
        assert "speculation" not in page.bodies()[-1]
        assert page.count(".said .drafted") > 0

    def test_keyboard(self, page):
        page.set(max_tokens=5)
        page.find("#prompt").send_keys("one", SHIFT, ENTER, RELEASE, "two")
        assert page.count(".turn") == 0
        page.press(ENTER)
        until(lambda: page.count(".turn") and page.idle())
        assert page.text(".asked") == "one\ntwo"
        page.press(ENTER)
        assert page.count(".turn") == 1, "an empty message was sent"
        page.script("document.activeElement.blur(); document.querySelector('.skip').focus()")
        assert (
            page.script("return document.querySelector('.skip').getBoundingClientRect().top") >= 0
        )
        page.press(ENTER)
        assert page.focus == "prompt"

    def test_every_control_has_a_name(self, page):
        page.set(max_tokens=5)
        page.answer("Hello.")
        page.find("[popovertarget=settings]").click()
        page.script(
            "document.querySelector('#ask-key').hidden = document.querySelector('#stop').hidden = false"
        )
        page.driver.execute_cdp_cmd("Accessibility.enable", {})
        nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        found = {}
        for node in nodes:
            found.setdefault(node.get("role", {}).get("value"), []).append(
                node.get("name", {}).get("value", "")
            )
        assert sorted(found["button"]) == [
            "Again without the draft",
            "New chat",
            "Send",
            "Settings",
            "Stop",
            "Use key",
        ]
        assert sorted(found["textbox"]) == ["API key", "Message", "System prompt"]
        assert sorted(found["spinbutton"]) == ["Most tokens", "Seed", "Temperature"]
        assert found["switch"] == ["Draft"]
        unlabelled = "return [...document.querySelectorAll('input, textarea')].filter((one) => !one.labels.length).map((one) => one.id)"
        assert page.script(unlabelled) == [], "a placeholder is no label"
        assert found["main"] == ["Conversation"]
        assert found["article"] == ["Turn 1"]
        assert {"banner", "status", "alert"} <= set(found)


@needs_browser
class TestTrouble:
    def test_a_setting_that_is_no_good(self, page):
        page.set(temperature=-1)
        page.say("Hello.")
        assert page.text("#trouble").startswith("Temperature: ")
        assert page.focus == "temperature"
        assert page.text("#told") == ""
        assert page.count(".turn") == 0

    def test_a_request_that_is_refused(self, page):
        """The one thing said is the server's own line, and what was typed is not lost."""
        page.find("#prompt").click()
        page.script("document.querySelector('#prompt').value = 'long '.repeat(4000)")
        page.press(ENTER)
        until(lambda: page.text("#trouble"))
        until(page.idle)
        assert "but the context holds 2,048" in page.text("#trouble")
        assert "shorten the prompt" in page.text("#trouble")
        assert page.count(".turn") == 0
        assert page.script("return document.querySelector('#prompt').value.length") == 20_000
        assert any(
            "400" in one for one in page.complaints()
        )  # Chromium tells the console of every answer that is no 2xx
        page.set(max_tokens=5)
        page.answer("Hello.")
        assert page.text("#trouble") == ""

    def test_a_server_that_is_gone(self, tales, driver):
        with serve_in_thread(tales) as server:
            page = Page(driver, server.url)
            until(lambda: page.text("#model"))
        page.say("Hello.")
        until(lambda: page.text("#trouble"))
        assert (
            page.text("#trouble") == "The server does not answer. Is gguf-spec serve still running?"
        )
        assert page.script("return document.querySelector('#prompt').value") == "Hello."

    def test_a_server_that_ends_meanwhile(self, endless, driver):
        """What was said stays."""
        with serve_in_thread(endless) as server:
            page = Page(driver, server.url)
            until(lambda: page.text("#model"))
            page.say("a")
            until(lambda: len(page.text(".said")) > 100)
            server.close(grace=0)
        until(lambda: page.text("#trouble"))
        assert page.text("#trouble") == "The server is shutting down."
        assert len(page.text(".said")) > 100
        assert page.idle()

    def test_a_key(self, tales, driver):
        with serve_in_thread(tales, api_key="open-sesame") as server:
            page = Page(driver, server.url)
            until(lambda: page.text("#trouble"))
            assert page.text("#trouble") == "This server needs an API key. Enter it below."
            assert page.focus == "key"
            page.press("wrong", ENTER)
            until(
                lambda: page.text("#trouble") == "This is not the server's API key. Enter it below."
            )
            page.press("open-sesame", ENTER)
            until(lambda: page.text("#model"))
            assert page.focus == "prompt"
            assert not page.shows("#ask-key")
            assert page.script(
                "return [localStorage.length, sessionStorage.length, document.cookie]"
            ) == [0, 1, ""]
            page.set(max_tokens=5)
            assert page.answer("Hello.")


@pytest.fixture(scope="module")
def for_ever(endless):
    with serve_in_thread(endless) as one:
        yield one


@needs_browser
@pytest.mark.parametrize("page", ["for_ever"], indirect=True)
class TestStop:
    @pytest.mark.parametrize("how", ["key", "button"])
    def test_stops(self, page, for_ever, how):
        page.say("a")
        until(lambda: len(page.text(".said")) > 100)
        assert page.shows("#stop")
        assert not page.shows("#send")
        if how == "key":
            page.press(ESCAPE)
        else:
            page.press(TAB)
            assert page.focus == "stop"
            page.press(ENTER)
        until(page.idle, 5)
        assert page.focus == "prompt"
        said = page.text(".said")
        until(lambda: not ask(for_ever).json()["busy"], 5)  # the engine is free too
        assert page.text(".said") == said
        assert page.text(".cost").endswith("stopped")
        page.set(max_tokens=5)
        page.answer("b")
        assert [one["role"] for one in page.bodies()[-1]["messages"]] == [
            "user",
            "assistant",
            "user",
        ]

    def test_where_nothing_is_drafted(self, page):
        assert not page.find("#draft").is_enabled()
        assert not page.find("#draft").is_selected()
        assert page.text("#legend") == "This server drafts nothing."

    def test_a_new_chat_ends_the_answer(self, page, for_ever):
        page.say("a")
        until(lambda: len(page.text(".said")) > 100)
        page.find("#new").click()
        until(lambda: not ask(for_ever).json()["busy"], 5)
        time.sleep(0.2)
        assert page.count(".turn") == 0
        assert page.text("#speed") == "–"
        assert page.shows("#send")

    def test_reading_on_is_not_disturbed(self, page):
        """Who scrolls up while the answer grows stays there."""
        page.say("a")
        until(lambda: page.script("return document.documentElement.scrollTop") > 300)
        page.script("document.documentElement.scrollTop = 50")
        n = len(page.text(".said"))
        until(lambda: len(page.text(".said")) > n + 500)
        assert page.script("return document.documentElement.scrollTop") == 50
        page.press(ESCAPE)
        until(page.idle, 5)


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen(page, width):
    page.size(width)
    page.set(max_tokens=30)
    page.answer("w" * 400 + "\n\tdef a_long_line_of_code(): return " + "x_y." * 60)
    page.find(".again").click()
    until(lambda: page.shows(".difference"), 60)
    page.find("[popovertarget=settings]").click()
    wide = """const place = (one) => one.getBoundingClientRect();
        const seen = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility() && !one.closest(".unseen, .skip"));
        return seen.filter((one) => place(one).right > innerWidth + 0.5 || place(one).left < -0.5).map((one) => one.outerHTML.slice(0, 80))"""
    assert page.script(wide) == []
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")
    assert page.script("return innerWidth") == WIDTHS[width][0], "the page was zoomed out to fit"
