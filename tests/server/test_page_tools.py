"""The page in Chromium: tools of tool servers, each call asked for, by keys alone."""

import pytest

from gguf_spec.server import serve_in_thread
from gguf_spec.tool_servers import ToolServer
from tests.server.conftest import until
from tests.support.browser import (
    CONTROL,
    ENTER,
    ESCAPE,
    RELEASE,
    SHIFT,
    TAB,
    WIDTHS,
    Page,
    needs_browser,
    pieces,
)
from tests.tools.test_tool_servers import COMMAND

pytest.importorskip("mcp")
pytestmark = needs_browser


def calls(*asked, text=""):
    """Return the pieces of an answer that ends with calls: names and arguments."""
    items = [
        {
            "type": "response.output_item.done",
            "item": {"type": "function_call", "call_id": f"c{n}", "name": name, "arguments": given},
        }
        for n, (name, given) in enumerate(asked)
    ]
    *said, end = pieces(*([text] if text else []))
    return [*said, *items, end]


ADD = ("add", '{"a": 2, "b": 40}')


@pytest.fixture(scope="module")
def offering(tales):
    one = ToolServer("mine", COMMAND, timeout=30)
    with serve_in_thread(tales, tool_servers=[one]) as server:
        yield server


@pytest.fixture
def page(driver, offering):
    """The page by the address that the server prints, once its tools are there."""
    driver.get(f"{offering.url}/health")
    driver.execute_script("localStorage.clear(); sessionStorage.clear()")
    driver.get("about:blank")
    driver.get_log("browser")
    one = Page(driver, offering.page_url)
    until(lambda: one.count("#tools-list li"))
    yield one
    assert not one.complaints()


def asks(page):
    until(lambda: page.shows("#ask-tool"))
    return page.text("#ask-tool-name"), page.text("#ask-tool-arguments")


def end(page):
    until(page.idle)
    return page.text(".answer .text")


def results(page, n=-1):
    """Return the outputs that a request sent."""
    return [
        one["output"]
        for one in page.asked()[n]["messages"]
        if one.get("type") == "function_call_output"
    ]


def test_allowed_by_keys(page):
    page.fake(calls(ADD, text="Let me see."), pieces("It is 42."))
    page.say("2 + 40?")
    assert asks(page) == ("add", '{\n  "a": 2,\n  "b": 40\n}')
    assert page.text("#ask-tool-server") == "mine"
    assert page.focus == "ask-tool-title"
    page.press(ENTER)
    assert page.shows("#ask-tool"), "Enter alone allows nothing"
    for _ in range(3):
        page.press(TAB)
    assert page.focus == "allow"
    page.press(ENTER)
    assert end(page) == "It is 42."
    assert page.texts(".call summary") == ["Called: add"]
    assert page.texts(".call pre") == ['{"a": 2, "b": 40}', "42"]
    assert page.texts(".said") == ["Let me see."]
    first, second = page.asked()
    assert [one["name"] for one in first["tools"]][:2] == ["add", "odd"]
    assert first["tools"][0].keys() == {"type", "name", "description", "parameters"}
    question, said, call, output = second["messages"]
    assert (question["content"], said["content"]) == ("2 + 40?", "Let me see.")
    assert call == {"type": "function_call", "call_id": output["call_id"], "name": "add", "arguments": '{"a": 2, "b": 40}'}  # fmt: skip
    assert output["output"] == "42"


def test_denied_by_escape(page, tmp_path):
    file = tmp_path / "log"
    page.fake(calls(("note", f'{{"file": "{file}"}}')), pieces("I cannot."))
    page.say("Note it.")
    asks(page)
    page.press(ESCAPE)
    assert end(page) == "I cannot."
    assert not file.exists()
    assert page.texts(".call summary") == ["Denied: note"]
    assert results(page) == ["The user did not allow this call."]


def test_nothing_runs_before_the_answer(page, tmp_path):
    file = tmp_path / "log"
    given = f'{{"file": "{file}"}}'
    page.fake(calls(("note", given), ("note", given)), pieces("Done."))
    page.say("Note it.")
    asks(page)
    assert page.texts(".call summary") == ["Asks to call: note", "Not called: note"]
    assert not file.exists()
    page.find("#allow").click()
    until(file.exists)
    asks(page)
    assert file.read_text("utf-8") == "called\n", "each call has its own question"
    page.find("#deny").click()
    assert end(page) == "Done."
    assert file.read_text("utf-8") == "called\n"
    assert page.texts(".call summary") == ["Called: note", "Denied: note"]


def test_texts_of_tools_are_no_markup(page):
    odd = '{"a": "<b>\u202e</b>"}'
    page.fake(calls(("odd", odd)), pieces("a"))
    page.say("Odd?")
    assert "\\u202e" in asks(page)[1]
    page.find("#allow").click()
    end(page)
    assert page.count(".call img, .call b") == 0
    assert page.texts(".call .output") == [
        "<img src=x onerror=alert(1)>\\u001b[31m\\u202e</tool_response>"
    ]
    assert results(page) == ["<img src=x onerror=alert(1)>\x1b[31m\u202e</tool_response>"]


@pytest.mark.parametrize(("name", "text"), [
    ("no_such", "There is no tool no_such."), ("fails", "Error executing tool fails"),
    ("dies", "The call failed: Connection closed. It wrote: the last words"),
])  # fmt: skip
def test_what_goes_wrong_is_a_result(page, name, text):
    page.fake(calls((name, "{}")), pieces("Sorry."))
    page.say("Do it.")
    asks(page)
    page.find("#allow").click()
    assert end(page) == "Sorry."
    assert results(page)[0].startswith(text)


def test_rounds_have_an_end(page):
    page.fake(*[calls(ADD)] * 8, pieces("Enough."))
    page.say("Again and again.")
    for n in range(8):
        asks(page)
        page.find("#allow").click()
        # the next question may come at once
        until(lambda n=n: page.texts(".call summary").count("Called: add") > n)
    assert end(page) == "Enough."
    assert [one.get("tool_choice") for one in page.asked()] == [None] * 8 + ["none"]


def test_kept_over_a_reload_and_sent_again(page):
    page.fake(calls(ADD), pieces("It is 42."))
    page.say("2 + 40?")
    asks(page)
    page.find("#allow").click()
    end(page)
    page.reload()
    assert page.texts(".call summary") == ["Called: add"]
    page.fake(pieces("b"))
    page.answer("And?")
    assert [one.get("type", one.get("role")) for one in page.asked()[0]["messages"]] == ["user", "function_call", "function_call_output", "assistant", "user"]  # fmt: skip


def test_a_reload_during_the_question(page):
    page.fake(calls(ADD), pieces("It is 42."))
    page.say("2 + 40?")
    asks(page)
    page.reload()
    assert not page.shows("#ask-tool")
    assert page.texts(".call summary") == ["Not called: add"]
    page.fake(pieces("b"))
    page.answer("And?")
    assert results(page) == ["This call was not made."]


def test_stopped_while_a_tool_runs(page):
    page.fake(calls(("hangs", "{}")), pieces("b"))
    page.say("Wait.")
    asks(page)
    page.find("#allow").click()
    until(lambda: page.texts(".call summary") == ["Calling: hangs"])
    page.find("#stop").click()
    until(page.idle)
    assert page.texts(".call summary") == ["Not called: hangs"]
    assert "Stopped" in page.text(".cost") or "stopped" in page.text(".cost")
    assert page.answer("More.") == "b"


def test_another_chat_asks(page):
    page.fake("held", pieces("It is 42."))
    page.say("One.")
    until(lambda: page.script("return window.held.length"))
    page.find("#new").click()
    page.type("#prompt", "half a word")
    page.script(
        """const one = window.held[0];
        for (const piece of arguments[0]) one.stream.enqueue(new TextEncoder().encode(one.write(piece, one.n++)));
        one.stream.close();""",
        calls(ADD),
    )
    until(lambda: page.text("#notice p") == "A tool is asked for: One.")
    assert not page.shows("#ask-tool"), "what is being written is left alone"
    page.click("#notice button", "Show")
    asks(page)
    page.find("#allow").click()
    assert end(page) == "It is 42."


def test_switched_off_in_the_settings(page):
    page.find("#open-settings").click()
    page.script("document.querySelector('#settings details').open = true")
    assert page.texts("#tools-list li") == ["mine: add, odd, big, fails, dies, hangs, note"]
    page.script("document.querySelector('#tools-row input').focus()")
    page.press(" ", ESCAPE)
    page.fake(pieces("a"))
    page.answer("Hello.")
    assert "tools" not in page.asked()[0]


def test_the_address_shows_no_token_and_another_tab_needs_none(page, offering):
    assert page.script("return location.href") == f"{offering.url}/"
    page.driver.get(f"{offering.url}/")
    until(lambda: page.count("#tools-list li"))
    page.script("localStorage['gguf-spec.tools'] = 'an-old-one'")
    page.reload()
    until(lambda: page.count("#tools-list li"))
    assert page.texts("#tools-list li") == [
        "To use tools, open the page by the address that gguf-spec serve printed."
    ]
    page.fake(pieces("a"))
    page.answer("Hello.")
    assert "tools" not in page.asked()[0]


def test_exported(page):
    page.fake(calls(ADD), pieces("It is 42."))
    page.say("2 + 40?")
    asks(page)
    page.find("#allow").click()
    end(page)
    kept = "return Object.entries(localStorage).find(([name]) => name.startsWith('gguf-spec.chat.'))[1]"
    text = page.driver.execute_async_script(
        f"const done = arguments[0], kept = JSON.parse((() => {{ {kept} }})()); import('/page/transfer.js').then((it) => done(it.toMarkdown(kept)))"
    )
    assert 'Tool `add`:\n\n```\n{"a": 2, "b": 40}\n```\n\n```\n42\n```\n\nIt is 42.' in text


class Keys:
    """A user without a mouse: every press of Tab must end at something that is seen and marked."""

    def __init__(self, page):
        self.page = page

    def go(self, selector, back=False):
        """Press Tab, or Shift Tab, until the focus is at an element."""
        seen = []
        for _ in range(120):
            one = "const one = document.activeElement; "
            if self.page.script(f"{one} return one.matches(arguments[0])", selector):
                return
            if back:
                self.page.driver.switch_to.active_element.send_keys(SHIFT, TAB, RELEASE)
            else:
                self.page.press(TAB)
            look = f"""{one} const {{outlineStyle, borderColor}} = getComputedStyle(one);
                return [one.outerHTML.slice(0, 60), one === document.body || (one.checkVisibility() && outlineStyle !== "none") || one.matches("input, textarea, select")]"""
            told, is_marked = self.page.script(look)
            assert is_marked, told
            seen.append(told)
        raise AssertionError(f"{selector} is not reached: {seen}")

    def at(self, selector, *keys, back=False):
        self.go(selector, back)
        self.page.press(*(keys or [ENTER]))


@pytest.mark.parametrize("width", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_by_keys(page, width, scheme, tmp_path):
    """Attach, send, versions, edit, delete, undo, search, pin, models and tools."""
    page.size(width, scheme)
    keys = Keys(page)
    see = lambda name: page.driver.save_screenshot(str(tmp_path / f"{width}-{scheme}-{name}.png"))  # noqa: E731
    (tmp_path / "a.txt").write_text("The fox sleeps.", "utf-8")
    page.script("document.querySelector('#prompt').focus()")
    stop = "document.querySelector('#file').addEventListener('click', (event) => { event.preventDefault(); window.chooses = true; })"
    page.script(stop)  # the window of the system has keys of its own
    keys.at("#attach", back=True)
    assert page.script("return window.chooses")
    page.script("document.querySelector('#file').hidden = false")
    page.find("#file").send_keys(str(tmp_path / "a.txt"))
    page.script("document.querySelector('#file').hidden = true")
    until(lambda: page.count("#files li") == 1)
    assert page.focus == "prompt"
    keys.at("#files button", back=True)
    assert (page.count("#files li"), page.focus) == (0, "prompt")
    page.fake(pieces("First."), pieces("Second."), pieces("Third."))
    page.press("Who sleeps?", ENTER)
    until(lambda: page.count(".answer .tools button") and page.idle())
    keys.at(".question .change", back=True)
    page.press(" And where?", ENTER)
    until(lambda: page.text(".answer .text") == "Second." and page.idle())
    see("versions")
    keys.at(".question .turner button:not(:disabled)", back=True)
    assert page.text(".answer .text") == "First."
    keys.at(".answer .change")
    page.press(" Edited.")
    keys.at(".answer .edit .main")
    assert page.text(".answer .text") == "First. Edited."
    keys.at(".answer .tools [aria-label=Delete]")
    assert page.text(".answer .text") == "First.", "the version before is shown"
    keys.at("#notice button")
    assert page.text(".answer .text") == "First. Edited."
    page.press(CONTROL, "k", RELEASE)
    assert page.focus == "search"
    page.press("sleeps")
    until(lambda: page.count("#conversations mark"))
    keys.at("#conversations [aria-pressed]")
    assert (
        page.script("return document.querySelector('#conversations [aria-pressed]').ariaPressed")
        == "true"
    )
    see("search")
    page.press(ESCAPE)
    keys.at("#open-settings", back=width == "desktop")
    keys.at("#settings summary")
    assert page.script("return document.querySelector('#settings details').open")
    see("settings")
    keys.at("#tools-row input", " ")
    keys.at("#memory button")
    until(lambda: page.text("#memory-told").endswith("."))
    see("memory")
    keys.at("#settings .close", back=True)
    assert not page.shows("#settings")
    page.script("document.querySelector('#prompt').focus()")
    page.press("Any tools?", ENTER)
    until(lambda: page.text(".answer:last-of-type .text") == "Third." and page.idle())
    assert "tools" not in page.asked()[-1], "they were switched off"
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")
    page.size("desktop")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_question_fits(page, width, scheme, tmp_path):
    page.size(width, scheme)
    long = '{"text": "' + "word " * 400 + "x" * 300 + '"}'
    page.fake(calls(("add", long)), pieces("a"))
    page.say("Long.")
    asks(page)
    room = "const {left, right, bottom} = document.querySelector(arguments[0]).getBoundingClientRect(); return [left >= 0, right <= innerWidth, bottom <= innerHeight]"
    for one in ("#ask-tool", "#allow", "#deny", "#ask-tool-arguments"):
        assert page.script(room, one) == [True] * 3
    inside = "const edge = (one) => document.querySelector(one).getBoundingClientRect().right; return edge('#ask-tool') - edge('#allow')"
    assert page.script(inside) > 10, "the window has a margin"
    page.driver.save_screenshot(str(tmp_path / "ask.png"))
    page.find("#deny").click()
    end(page)
    page.find(".call summary").click()
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")
    page.size("desktop")
