"""The page in Chromium: questions and answers, the drawer, and their accessibility."""

import time

import pytest

from tests.server.conftest import ask, until
from tests.support.browser import (
    ENTER,
    ESCAPE,
    RELEASE,
    SHIFT,
    TAB,
    WIDTHS,
    needs_browser,
    pieces,
    refusal,
)

pytestmark = needs_browser

FAST = {"drafted": 8, "accepted": 6, "speedup": 1.8}
TOO_LONG = refusal("The prompt is too long.", "context_length_exceeded", "messages")


class TestChat:
    def test_streams(self, page):
        page.set(seed=3, max_tokens=400)
        page.say("Tell me of a fox.")
        until(lambda: page.text(".answer .text"))
        seen = []
        look = """const see = (one) => document.querySelector(one)?.textContent;
            return document.querySelector("[aria-busy=true]") && [".text", ".cost", "#told"].map(see)"""
        while moment := page.script(look):  # all of one moment
            seen.append(moment)
            time.sleep(0.02)
        until(page.idle)
        assert len({text for text, *_ in seen}) > 3, "the text does not stream"
        assert len({cost for _, cost, _ in seen}) > 1, "the count does not move"
        assert {told for *_, told in seen} <= {"Answering."}, "a screen reader hears every token"
        assert page.text("#told").startswith("Answer: ")
        assert "tokens/s" in page.text(".cost")
        assert page.bodies()[0] | {"input": 0} == {
            "model": page.text("#model-name"), "input": 0, "seed": 3, "max_tokens": 400, "stream": True, "return_progress": True,
            "background": True, "store": True, "stream_options": {"include_speculation": True},
        }  # fmt: skip

    def test_two_chats_at_once_get_the_texts_that_they_get_alone(self, page):
        page.set(seed=3, max_tokens=300)
        questions = ("Tell me of a fox.", "Tell me of a bear.")
        alone = []
        for question in questions:
            page.find("#new").click()
            alone.append(page.answer(question))
        for question in questions:
            page.find("#new").click()
            page.say(question)
        until(lambda: not page.count("#conversations .answering"))
        for text in reversed(alone):  # the last one asked is open
            assert page.text(".answer .text") == text
            page.script("document.querySelectorAll('#conversations .open')[1].click()")

    def test_says_how_much_of_a_long_prompt_is_read(self, page):
        states = page.module(
            "answer.js",
            """const answer = new it.Answer({input: []}, () => {});
            const read = (total, cache, processed) => answer.take({prompt_progress: {total, cache, processed}});
            const of = (...piece) => { read(...piece); return answer.state; };
            return [answer.state, of(400, 0, 256), of(4000, 3900, 3950), of(4000, 100, 1124), of(4000, 100, 4000)]""",
        )  # fmt: skip
        wait = "Waiting for the first word …"
        assert states == [wait, wait, wait, "Read 1,124 of 4,000 tokens …", wait]

    def test_sends_the_conversation_until_a_new_chat(self, page):
        page.set(max_tokens=20, system="You are brief.")
        page.fake(pieces("**Yes.**"))
        page.answer("One.")
        page.answer("Two.")
        messages = page.bodies()[-1]["input"]
        assert [(one["role"], one["content"]) for one in messages] == [
            ("system", "You are brief."), ("user", "One."), ("assistant", "**Yes.**"), ("user", "Two.")
        ]  # fmt: skip
        page.find("#new").click()
        assert page.focus == "prompt"
        assert page.count(".message") == 0
        assert page.shows("#empty")
        page.answer("Three.")
        assert [one["content"] for one in page.bodies()[-1]["input"]] == [
            "You are brief.",
            "Three.",
        ]

    def test_a_starter_begins_the_message(self, page):
        page.click("#starters button", "Explain this code:")
        assert page.focus == "prompt" and page.count(".message") == 0
        page.fake(pieces("It adds."))
        page.press("a + b", ENTER)
        until(lambda: page.count(".answer") and page.idle())
        assert page.texts(".asked") == ["Explain this code: a + b"]
        assert not page.shows("#starters")

    def test_answers_have_an_end(self, page):
        """Without any setting, an answer takes at most half of the context: the next one has room."""
        page.fake(pieces("a", finish="length"), pieces("b"))
        page.answer("One.")
        assert page.asked()[0]["max_tokens"] == 1024
        assert page.text(".cost").startswith("Ended at the limit of its length")
        page.click(".tools button", "Continue")
        until(lambda: page.count(".answer") == 2 and page.idle())
        assert page.asked()[1]["messages"][-1] == {"role": "user", "content": "Continue."}
        assert "Continue" not in page.texts(".tools button"), "only where there is more to come"

    def test_thinking_is_folded(self, page):
        page.fake(pieces("Four.", thought="Two and <b>two</b>."), pieces("Five."))
        page.answer("2+2?")
        assert page.text(".answer .text") == "Four."
        assert not page.shows(".thought")
        page.find(".thinking summary").click()
        assert page.shows(".thought")
        assert page.text(".thought") == "Two and <b>two</b>."
        assert page.text(".thinking summary").startswith("Thought for ")
        page.answer("And one?")
        assert page.asked()[1]["messages"][1] == {"role": "assistant", "content": "Four."}

    def test_keyboard(self, page):
        page.set(max_tokens=5)
        page.find("#prompt").send_keys("one", SHIFT, ENTER, RELEASE, "two")
        assert page.count(".message") == 0
        page.press(ENTER)
        until(lambda: page.count(".answer") and page.idle())
        assert page.text(".asked") == "one\ntwo"
        page.press(ENTER)
        assert page.count(".question") == 1, "an empty message was sent"
        page.script("document.activeElement.blur(); document.querySelector('.skip').focus()")
        assert (
            page.script("return document.querySelector('.skip').getBoundingClientRect().top") >= 0
        )
        page.press(ENTER)
        assert page.focus == "prompt"

    def test_the_order_of_the_focus(self, page):
        page.fake(pieces("Hi."))
        page.answer("Hello.")
        page.script("document.querySelector('.skip').focus()")
        names = []
        for _ in range(24):
            page.press(TAB)
            name = page.script(
                "const one = document.activeElement; return one.id || one.getAttribute('aria-label') || one.textContent"
            )
            names.append(name)
        assert names[:3] == ["new", "search", "Hello."]
        order = [
            "open-settings",
            "Edit",
            "Delete",
            "Answer again",
            "Edit",
            "Delete",
            "attach",
            "prompt",
            "send",
        ]
        assert [name for name in names if name in order][: len(order)] == order

    def test_reduced_motion_is_respected(self, page):
        """The caret blinks, but not with `prefers-reduced-motion`."""
        caret = """const [one, two] = [document.createElement("div"), document.createElement("div")];
            one.className = "message"; one.setAttribute("aria-busy", "true"); two.className = "text";
            one.append(two); document.querySelector("#thread").append(one);
            return getComputedStyle(two, "::after").animationName"""
        assert page.script(caret) == "blink"
        page.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]},
        )
        assert page.script(caret) == "none"

    def test_a_question_stays_text(self, page):
        page.fake(pieces("x"))
        page.answer("<b id=bold>x</b><img src=x>")
        assert page.text(".asked") == "<b id=bold>x</b><img src=x>"
        assert page.count("#bold, main img") == 0

    def test_every_control_has_a_name(self, page):
        page.fake(pieces("```py\nx\n```", ("y", True), **FAST))
        page.answer("Hello.")
        page.script(
            "document.querySelector('#ask-key').hidden = document.querySelector('#stop').hidden = false"
        )
        page.driver.execute_cdp_cmd("Accessibility.enable", {})
        found = self.tree(page)
        assert {"Send", "Stop", "Use key", "Settings", "New chat", "Copy", "Edit", "Answer again", "Attach files", "All keys",
                "Pin: Hello.", "Delete", "Rename: Hello.", "Delete: Hello.", "Hello.", "Why is it fast?"} <= {*found["button"]}  # fmt: skip
        assert "" not in found["button"]
        assert sorted(found["textbox"]) == ["API key", "Message"]
        assert found["searchbox"] == ["Search chats"]
        assert found["main"] == ["Conversation"]
        assert found["article"] == ["You", "Answer"]
        assert found["navigation"] == ["Chats"]
        assert {"banner", "status", "alert"} <= set(found)
        page.find("#open-settings").click()
        page.script("document.querySelector('#settings details').open = true")
        found = self.tree(page)
        assert "dialog" in found
        assert sorted(found["spinbutton"]) == [
            "Frequency penalty: for each repetition", "Min-p: part of the best word's probability", "Most tokens",
            "Presence penalty: once for each word", "Repeat penalty: a factor, 1 is off",
            "Seed: the same number gives the same answer", "Temperature", "Top-k: the most likely words alone",
            "Top-p: up to this total probability",
        ]  # fmt: skip
        assert len(found["radio"]) == 3
        assert found["switch"] == ["Propose words ahead, where that is faster"]
        unlabelled = "return [...document.querySelectorAll('input, textarea, select')].filter((one) => !one.labels.length && !one.ariaLabel).map((one) => one.id)"
        assert page.script(unlabelled) == [], "a placeholder is no label"

    @staticmethod
    def tree(page):
        nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        found = {}
        for node in nodes:
            if not node.get("ignored"):
                found.setdefault(node.get("role", {}).get("value"), []).append(
                    node.get("name", {}).get("value", "")
                )
        return found


class TestWhyFast:
    def test_shows_accepted_text(self, page):
        page.fake(pieces("a ", ("b ", True), "c", ("d", True), **FAST))
        page.answer("Hello.")
        assert page.shows(".tools .why")
        page.find(".tools .why").click()
        assert page.shows("#why")
        assert page.text(".proposed") == "a b cd"
        assert page.texts(".proposed .drafted") == ["b ", "d"]
        assert page.text("#why .headline") == "About 1.8 times as fast as word by word"
        line = "return getComputedStyle(document.querySelector('.proposed .drafted')).textDecorationLine"
        assert page.script(line) == "underline", "not by colour alone"
        page.press(ESCAPE)
        assert not page.shows("#why")
        page.reload()
        page.find(".tools .why").click()
        assert page.texts(".proposed .drafted") == ["b ", "d"]
        assert page.count(".measured") == 0, "the request is not kept"

    def test_no_text_about_drafts_where_they_do_not_pay(self, page):
        page.fake(pieces(("a", True), drafted=8, accepted=6, speedup=0.9))
        page.answer("Hello.")
        assert page.count(".why") == 0
        assert not any(
            word in page.text("#thread").lower() for word in ("draft", "speed", "faster", "×")
        )
        assert page.count("main .drafted") == 0

    def test_measures(self, page):
        page.set(seed=7, max_tokens=60)
        page.answer("Tell me of a hen.")
        real = page.bodies()[0]
        page.script("localStorage.clear()")
        page.fake(pieces(("x", True), **FAST))
        page.answer("Tell me of a hen.")
        # the real answer has such a button too where the clock says that drafts paid
        page.driver.find_elements("css selector", ".tools .why")[-1].click()
        page.click(".measured button")
        until(lambda: page.shows(".bars"))
        plain = page.bodies()[-1]
        assert plain["speculation"] == "off"
        assert (plain["seed"], plain["max_tokens"], plain["model"]) == (7, 60, real["model"])
        assert "times as fast, the texts differ after" in page.text(".measured p")
        assert page.text("#told") == page.text(".measured p")
        assert page.count(".bars tr") == 2

    def test_with_a_real_draft(self, page):
        """The marks are those of the stream: all of them together are the text."""
        page.set(seed=5, max_tokens=60, temperature=0)
        page.answer("Tell me of a bear.")
        whole = """const [kept] = Object.keys(localStorage).filter((key) => key.startsWith("gguf-spec.chat."));
            const {content, marks} = JSON.parse(localStorage[kept]).messages[1];
            return [marks.reduce((sum, n) => sum + n, 0), content.length, marks.length]"""
        marked, length, runs = page.script(whole)
        assert marked == length > 0
        assert runs > 5

    def test_can_be_switched_off(self, page):
        page.find("#open-settings").click()
        page.script("document.querySelector('#settings details').open = true")
        page.find("#drafts-row input").click()
        page.press(ESCAPE)
        page.fake(pieces("x"))
        page.answer("Hello.")
        assert page.asked()[0]["speculation"] == "off"

    @pytest.mark.parametrize("page", ["for_ever"], indirect=True)
    def test_no_text_about_drafts_without_a_draft(self, page):
        page.find("#open-settings").click()
        page.script("document.querySelector('#settings details').open = true")
        assert not page.shows("#drafts-row")
        assert "draft" not in page.text("#about").lower()


class TestFullContext:
    def test_old_turns_are_left_out_with_a_note(self, page):
        page.set(max_tokens=1000)
        page.fake(*(pieces("word " * 200, prompt_tokens=n) for n in (420, 1040, 1040)))
        for n in range(3):
            page.answer(f"{n} " + "long " * 400)
        sent = page.asked()
        assert [len(one["messages"]) for one in sent[:2]] == [1, 3]
        assert len(sent[2]["messages"]) == 3
        assert sent[2]["messages"][0]["role"] == "user"
        assert sent[2]["messages"][-1]["content"].startswith("2 ")
        assert "context of 2,048 tokens is full" in page.text(".divider")
        assert page.count(".question") == 3, "they are still there to read"

    def test_a_short_question_does_not_make_later_ones_look_long(self, page):
        """Its prompt is mostly the template's, so a token seemed to have few characters: the conversation was dropped."""
        page.fake(pieces("a", prompt_tokens=60), pieces("b", prompt_tokens=400), pieces("c"))
        page.answer("Hi.")
        page.answer("Look: " + "once upon a time there was a fox. " * 60)
        assert len(page.asked()[1]["messages"]) == 3
        assert page.count(".divider") == 0
        assert page.text("#fill") == "402 of 2,048"
        page.answer("And?")
        assert len(page.asked()[2]["messages"]) == 5

    def test_the_server_decides_what_fits(self, page):
        page.fake(pieces("a"), pieces("b"), TOO_LONG, pieces("c"))
        for question in ("One.", "Two.", "Three."):
            page.answer(question)
        assert [len(one["messages"]) for one in page.asked()] == [1, 3, 5, 3]
        assert page.text(".divider").startswith("The model no longer sees the 2 messages above")
        page.reload()
        assert page.text(".divider").startswith("The model no longer sees the 2 messages above")
        page.complaints()  # Chromium tells the console of every answer that is no 2xx

    def test_a_message_that_is_too_long_by_itself(self, page):
        """With the real server: cut as often as it takes."""
        page.set(max_tokens=5)
        page.script("document.querySelector('#prompt').value = 'long '.repeat(8000)")
        page.find("#prompt").click()
        page.press(ENTER)
        until(lambda: page.text("#trouble"))
        assert "maximum context length is 2048 tokens" in page.text("#trouble")
        for _ in range(10):
            page.click("#trouble button", "Shorten the message")
            until(lambda: page.idle() and (page.text("#trouble") or page.count(".answer")))
            if page.count(".answer"):
                break
        assert page.count(".answer") == 1
        assert "was cut" in page.text("#notice")
        assert 1000 < len(page.text(".asked")) < 40_000


@pytest.mark.parametrize("page", ["for_ever"], indirect=True)
class TestStop:
    @pytest.mark.parametrize("how", ["key", "button"])
    def test_stops(self, page, for_ever, how):
        page.set(max_tokens=40_000)
        page.say("a")
        until(lambda: len(page.text(".text")) > 100)
        assert page.shows("#stop")
        assert not page.shows("#send")
        if how == "key":
            page.press(ESCAPE)
        else:
            page.press(TAB)
            assert page.focus == "stop"
            page.press(ENTER)
        until(page.idle)
        assert page.focus == "prompt"
        said = page.text(".text")
        until(lambda: not ask(for_ever).json()["busy"])  # the engine is free too
        assert page.text(".text") == said
        assert page.text(".cost").startswith("Stopped")
        page.set(max_tokens=5)
        page.answer("b")
        roles = [one["role"] for one in page.bodies()[-1]["input"]]
        assert roles == ["user", "assistant", "user"]

    def test_a_new_chat_leaves_the_answer_running(self, page, for_ever):
        page.set(max_tokens=40_000)
        page.say("a")
        until(lambda: len(page.text(".text")) > 100)
        page.find("#new").click()
        assert page.count(".message") == 0
        assert page.shows("#send")
        kept = "return Object.values(localStorage).join('').length"
        before = page.script(kept)
        until(lambda: page.script(kept) > before + 100)
        page.click("#conversations .open", "a")
        assert len(page.text(".text")) > 200
        page.find("#stop").click()
        until(lambda: not ask(for_ever).json()["busy"])
        until(page.idle)

    def test_reading_on_is_not_disturbed(self, page):
        """A user's scroll position stays while the answer grows."""
        page.set(max_tokens=40_000)
        page.say("a")
        until(lambda: page.script("return document.documentElement.scrollTop") > 300)
        page.script("document.documentElement.scrollTop = 50")
        n = len(page.text(".text"))
        until(lambda: len(page.text(".text")) > n + 500)
        assert page.script("return document.documentElement.scrollTop") == 50
        until(lambda: page.shows("#down"))
        page.click_at("#down")
        until(lambda: page.script("return document.documentElement.scrollTop") > 50)
        page.find("#prompt").click()  # the button that had the focus is hidden
        page.press(ESCAPE)
        until(page.idle)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen(page, width):
    page.size(width)
    wide = """const place = (one) => one.getBoundingClientRect();
        const seen = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility() && !one.closest(".unseen, .skip, pre, .table"));
        return seen.filter((one) => place(one).right > innerWidth + 0.5 || place(one).left < -0.5).map((one) => one.outerHTML.slice(0, 80))"""
    code = (
        "```\n" + "x_y." * 80 + "\n```\n" + "w" * 300 + "\n\n|" + " cell |" * 20 + "\n|" + "-|" * 20
    )
    page.fake(pieces(code, ("y", True), thought="w" * 300, **FAST))
    page.script("document.querySelector('#prompt').value = arguments[0]", "w" * 400)
    page.find("#send").click()
    until(lambda: page.count(".tools .why") and page.idle())
    page.script("document.querySelector('.thinking').open = true")
    assert page.script(wide) == []
    places = {"#open-settings": "#settings", ".tools .why": "#why", "#open-keys": "#keys-list"}
    for opener, place in places.items():
        page.script("document.querySelector(arguments[0]).click()", opener)
        assert page.shows(place)
        assert page.script(wide) == []
        page.press(ESCAPE)
    if width != "desktop":
        assert not page.shows("#sidebar")
        page.find("#open-sidebar").click()
        assert page.shows("#sidebar")
        assert page.script(wide) == []
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")
    assert page.script("return innerWidth") == WIDTHS[width][0], "the page was zoomed out to fit"


def test_models_are_loaded_and_unloaded(tmp_path, driver):
    from gguf_spec.server import ModelPool, serve_in_thread, served_model
    from tests.support import tiny
    from tests.support.browser import Page

    paths = [tiny.write(tmp_path / f"{name}.gguf", tiny.one_text("abc")) for name in ("one", "two")]
    pool = ModelPool([served_model(path, draft=None, threads=1) for path in paths])
    with serve_in_thread(pool) as server:
        page = Page(driver, server.url)
        until(lambda: page.count("#memory li") == 2)
        page.find("#open-settings").click()
        page.script("document.querySelector('#settings details').open = true")
        rows = lambda: page.texts("#memory li")  # noqa: E731
        assert rows() == ["Not in memoryLoad one.gguf", "Not in memoryLoad two.gguf"]
        page.click("#memory button", "Load two.gguf")
        until(lambda: page.text("#memory-told") == "Loaded.")
        assert rows() == ["Not in memoryLoad one.gguf", "In memoryUnload two.gguf"]
        page.click("#memory button", "Unload two.gguf")
        until(lambda: page.text("#memory-told").startswith("Unloaded."))
        assert rows()[1] == "Not in memoryLoad two.gguf"
        paths[0].unlink()
        page.click("#memory button", "Load one.gguf")
        until(lambda: "cannot be loaded" in page.text("#memory-told"))
        page.complaints()
