"""The page in Chromium: stored, edited, exported and attached contents, and errors."""

import base64
import json

import pytest

from gguf_spec.server import serve_in_thread
from tests.server.conftest import until
from tests.server.test_documents import pdf
from tests.support.browser import (
    BACKSPACE,
    CONTROL,
    ENTER,
    ESCAPE,
    RELEASE,
    SHIFT,
    Page,
    needs_browser,
    pieces,
    refusal,
)

pytestmark = needs_browser


def chats(page):
    return page.texts("#conversations .open")


class TestKept:
    def test_over_a_reload(self, page):
        page.fake(pieces("**Yes.**"))
        page.answer("One.")
        page.reload()
        assert page.texts(".asked") == ["One."]
        assert page.text(".answer strong") == "Yes."
        assert chats(page) == ["One."]
        assert page.script("return document.title") == "One. – gguf-spec"
        page.fake(pieces("b"))
        page.answer("Two.")
        assert [one["content"] for one in page.asked()[0]["messages"]] == [
            "One.",
            "**Yes.**",
            "Two.",
        ]

    def test_several(self, page):
        page.fake(pieces("a"), pieces("b"), pieces("c"))
        page.answer("One.")
        page.find("#new").click()
        page.answer("Two.")
        assert chats(page) == ["Two.", "One."]
        page.click("#conversations .open", "One.")
        assert page.texts(".asked") == ["One."]
        assert page.text("[aria-current=page]") == "One."
        page.answer("More.")
        assert chats(page) == ["One.", "Two."], "the last one used is the first"

    def test_rename_and_delete(self, page):
        page.fake(pieces("a"), pieces("b"))
        page.answer("One.")
        page.find("#new").click()
        page.answer("Two.")
        page.click("#conversations button", "Rename: Two.")
        page.press("New name", ENTER)
        assert chats(page) == ["New name", "One."]
        page.click("#conversations button", "Rename: New name")
        page.press("not this", ESCAPE)
        page.reload()
        assert chats(page) == ["New name", "One."]
        page.click("#conversations button", "Delete: New name")
        assert chats(page) == ["One."]
        assert page.count(".message") == 0
        page.click("#notice button", "Undo")
        assert chats(page) == ["New name", "One."]
        assert page.texts(".asked") == ["Two."]
        page.click("#conversations button", "Delete: New name")
        page.reload()
        assert chats(page) == ["One."]

    def test_pinned_ones_come_first(self, page):
        page.fake(pieces("a"), pieces("b"), pieces("c"))
        for question in ("One.", "Two.", "Three."):
            page.find("#new").click()
            page.answer(question)
        page.click("#conversations button", "Pin: One.")
        assert chats(page) == ["One.", "Three.", "Two."]
        page.reload()
        assert chats(page) == ["One.", "Three.", "Two."]
        pressed = "return [...document.querySelectorAll('[aria-pressed]')].map((one) => one.getAttribute('aria-pressed'))"
        assert page.script(pressed) == ["true", "false", "false"]
        page.click("#conversations button", "Pin: One.")
        assert chats(page) == ["Three.", "Two.", "One."]

    def test_another_tab(self, page):
        page.fake(pieces("a"))
        page.answer("One.")
        first = page.driver.current_window_handle
        page.driver.switch_to.new_window("tab")
        try:
            page.open()
            until(lambda: chats(page) == ["One."])
            assert page.count(".message") == 0, "a new tab begins a new chat"
            page.fake(pieces("b"))
            page.answer("Two.")
        finally:
            page.driver.close()
            page.driver.switch_to.window(first)
        until(lambda: chats(page) == ["Two.", "One."])

    def test_a_storage_that_is_full(self, page):
        page.fake(pieces("a"), pieces("b"), pieces("c"))
        page.answer("One.")
        page.find("#new").click()
        page.script(
            "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError') }"
        )
        assert page.answer("Two.") == "b"
        assert "keeps nothing more" in page.text("#notice")
        assert page.texts("#notice button") == ["Export all", "Delete the oldest: One.", ""]
        page.click("#notice button", "Delete the oldest: One.")
        assert chats(page) == ["Two."]

    def test_a_storage_that_is_off(self, page):
        page.driver.execute_cdp_cmd("Page.enable", {})
        off = "for (const one of ['localStorage', 'sessionStorage']) Object.defineProperty(window, one, {get() { throw new Error() }})"
        script = page.driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": off}
        )
        try:
            page.reload()
            page.fake(pieces("a"))
            assert page.answer("One.") == "a"
            assert "keeps nothing more" in page.text("#notice")
        finally:
            page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

    @pytest.mark.parametrize("text", [
        "", "{", "null", "[]", '{"id": "1-2", "messages": "x"}', '{"id": "1-2", "messages": [null]}',
        '{"id": "1-2", "messages": [{"role": "system", "content": "x"}]}', '{"id": "3-4", "messages": [{"role": "user", "content": "x"}]}',
        '{"id": ["1-2"], "messages": [{"role": "user", "content": "x"}]}', '{"id": "1-2", "messages": [{"role": "user", "content": {}}]}',
    ])  # fmt: skip
    def test_a_storage_that_is_damaged(self, page, text):
        page.script(
            "localStorage['gguf-spec.chat.1-2'] = localStorage['gguf-spec.settings'] = arguments[0]",
            text,
        )
        page.reload()
        assert chats(page) == []
        page.fake(pieces("a"))
        assert page.answer("One.") == "a"

    def test_odd_values_that_are_kept(self, page):
        odd = {"id": "1-2", "title": 7, "updated": "x", "start": 99, "messages": [
            {"role": "user", "content": "q", "files": [{"name": 1}, {"name": "f", "text": "t"}],
             "shown": 99, "tails": [7, [], [{"role": "user", "content": "no"}], [{"role": "assistant", "content": "b"}]]},
            {"role": "assistant", "content": "a", "marks": [5, 5], "finish": 3, "stats": {"speedup": 9, "accepted": 1, "tokens": "x"}},
        ]}  # fmt: skip
        page.script("localStorage['gguf-spec.chat.1-2'] = arguments[0]", json.dumps(odd))
        page.reload()
        page.click("#conversations .open", "q")
        assert page.text(".file summary") == "f (1 line)"
        assert page.text(".turner span") == "2 / 2"
        page.find(".tools .why").click()
        assert page.text(".proposed") == "a"


def answering(page):
    """Return the titles of the chats that are marked."""
    return page.texts("#conversations li:has(.answering) .open")


class TestAnswersGoOn:
    """Only the button, a new question in the same chat or its removal ends an answer."""

    def begin(self, page):
        """Begin an answer in each of two chats; the second is open."""
        page.fake("held", "held")
        page.say("One.")
        until(lambda: page.count(".answer[aria-busy=true]"))
        page.give(0, "a")
        until(lambda: page.text(".answer .text") == "a")
        page.find("#new").click()
        page.say("Two.")
        until(lambda: page.script("return window.held.length") == 2)

    def test_in_two_chats_at_once(self, page):
        self.begin(page)
        assert answering(page) == ["Two.", "One."]
        page.give(1, "x")
        page.give(0, "b")
        until(lambda: page.text(".answer .text") == "x")
        page.click("#conversations .open", "One.")
        assert page.text(".answer .text") == "ab", "what it has so far"
        assert page.shows("#stop") and not page.shows("#send")
        assert page.count(".answer .tools button") == 0
        page.give(0, "c")
        until(lambda: page.text(".answer .text") == "abc")
        page.give(1, "y", ends=True)
        until(lambda: answering(page) == ["One."])
        assert page.text("#told") == "The answer is there: Two."
        page.give(0, "d", ends=True)
        until(lambda: page.idle() and not answering(page))
        assert page.text(".answer .text") == "abcd"
        assert page.stopped() == [False, False]
        page.click("#conversations .open", "Two.")
        assert page.text(".answer .text") == "xy"
        assert "tokens/s" in page.text(".cost")
        page.reload()
        assert page.text(".answer .text") == "xy"

    def test_before_its_first_word(self, page):
        page.fake("held")
        page.say("One.")
        until(lambda: page.count(".answer[aria-busy=true]"))
        page.find("#new").click()
        assert page.shows("#send") and page.count(".message") == 0
        page.click("#conversations .open", "One.")
        assert page.count(".answer[aria-busy=true]") == 1
        assert not page.shows("#pending")
        page.give(0, "a", ends=True)
        until(lambda: page.text(".answer .text") == "a" and page.idle())

    def test_the_button_stops_the_open_one(self, page):
        self.begin(page)
        page.give(1, "x")
        until(lambda: page.text(".answer .text") == "x")
        page.find("#stop").click()
        until(lambda: answering(page) == ["One."])
        assert page.stopped() == [False, True]
        assert page.text(".cost").startswith("Stopped")

    def test_deleting_a_chat_stops_it(self, page):
        self.begin(page)
        page.script("document.querySelectorAll('[aria-label=\"Delete: One.\"]')[0].click()")
        assert page.stopped() == [True, False]
        assert answering(page) == ["Two."]
        page.click("#notice button", "Undo")
        assert page.text(".answer .text") == "a"
        assert page.text(".cost").startswith("Stopped")
        page.click("[popovertarget=menu]")
        page.click("#menu button", "Delete all chats")
        assert page.stopped() == [True, True]
        assert chats(page) == []

    def test_another_tab_deletes_the_chat(self, page):
        self.begin(page)
        first = page.driver.current_window_handle
        page.driver.switch_to.new_window("tab")
        try:
            page.open()
            until(lambda: chats(page) == ["Two.", "One."])
            page.script("document.querySelectorAll('[aria-label=\"Delete: One.\"]')[0].click()")
        finally:
            page.driver.close()
            page.driver.switch_to.window(first)
        until(lambda: chats(page) == ["Two."])
        assert page.stopped() == [True, False]

    def test_another_tab_renames_the_chat(self, page):
        self.begin(page)
        first = page.driver.current_window_handle
        page.driver.switch_to.new_window("tab")
        try:
            page.size("desktop")
            page.open()
            until(lambda: chats(page) == ["Two.", "One."])
            page.click("#conversations .open", "One.")
            page.click("#conversations button", "Rename: One.")
            page.press("New name", ENTER)
        finally:
            page.driver.close()
            page.driver.switch_to.window(first)
        until(lambda: page.count("#conversations [title='New name']"))
        page.click("#conversations .open", "New name")
        page.give(0, "b", ends=True)
        until(page.idle)
        assert page.text(".answer .text") == "ab"
        page.reload()
        assert page.text(".answer .text") == "ab"
        assert chats(page) == ["Two.", "New name"]

    def test_an_error_is_told_where_it_came(self, page):
        self.begin(page)
        page.script("window.held[0].stream.close()")
        until(lambda: answering(page) == ["Two."])
        assert page.text("#trouble") == ""
        page.click("#conversations .open", "One.")
        assert page.text("#trouble p").startswith("The answer broke off.")
        assert page.text(".answer .text") == "a"

    def test_the_list_keeps_its_focus(self, page):
        self.begin(page)
        page.script("document.querySelector('[aria-label=\"Rename: One.\"]').focus()")
        page.give(0, ends=True)
        until(lambda: answering(page) == ["Two."])
        label = "return document.activeElement.getAttribute('aria-label')"
        assert page.script(label) == "Rename: One."


class TestSearch:
    def three(self, page):
        page.fake(pieces("The **fox** sleeps."), pieces("b"), pieces("c"))
        for question in ("Tell me of a bear.", "And of a wolf?", "A FOX, please."):
            page.find("#new").click()
            page.answer(question)

    @staticmethod
    def hits(page):
        return page.texts("#conversations .open > span")

    def test_in_titles_and_texts(self, page):
        self.three(page)
        assert self.hits(page) == ["A FOX, please.", "And of a wolf?", "Tell me of a bear."]
        page.find("#search").send_keys("fox")
        assert self.hits(page) == ["A FOX, please.", "Tell me of a bear."]
        assert page.texts("#conversations small") == ["A FOX, please.", "The **fox** sleeps."]
        assert page.texts("#conversations mark") == ["FOX", "fox"]
        assert page.text("#told") == "2 chats"
        page.find("#search").send_keys(" bear")
        assert self.hits(page) == ["Tell me of a bear."], "all words, wherever they are"
        page.press(ENTER)
        assert page.texts(".asked") == ["Tell me of a bear."]
        page.find("#search").send_keys(" no<b>")
        assert self.hits(page) == []
        assert page.shows("#no-hits") and not page.shows("#no-conversations")
        page.press(ESCAPE)
        assert len(self.hits(page)) == 3
        assert not page.shows("#no-hits")
        page.press(ESCAPE)
        assert page.focus == "prompt"

    def test_a_title_of_its_own_and_a_file(self, page):
        self.three(page)
        page.click("#conversations button", "Rename: A FOX, please.")
        page.press("Animals", ENTER)
        page.find("#search").send_keys("animal")
        assert self.hits(page) == ["Animals"]
        assert page.count("#conversations small") == 0
        found = page.module(
            "search.js",
            """const file = {name: "a.py", text: "x".repeat(50) + " def needle(): " + "y".repeat(99)};
            const chat = {messages: [{role: "user", content: "", files: [file]}]};
            return it.search([chat], "NEEDLE", () => "")[0].found""",
        )
        assert found == ["…" + "x" * 15 + " def ", "needle", "(): " + "y" * 56]

    def test_a_new_chat_ends_the_search(self, page):
        self.three(page)
        page.find("#search").send_keys("wolf")
        page.find("#new").click()
        assert len(self.hits(page)) == 3

    def test_escape_there_stops_no_answer(self, page):
        page.fake("held")
        page.say("One.")
        until(lambda: page.count(".answer[aria-busy=true]"))
        page.find("#search").send_keys("x", ESCAPE, ESCAPE)
        assert page.stopped() == [False]
        page.press(ESCAPE)
        assert page.stopped() == [True]


class TestKeys:
    def test_from_the_message_box(self, page):
        page.fake(pieces("a"))
        page.answer("One.")
        page.press(CONTROL, "k", RELEASE)
        assert page.focus == "search"
        page.press(CONTROL, SHIFT, "o", RELEASE)
        assert page.focus == "prompt"
        assert page.count(".message") == 0
        page.click("#conversations .open", "One.")
        page.press("text", CONTROL, SHIFT, BACKSPACE, RELEASE)
        assert chats(page) == ["One."], "in a field with text it deletes text"
        page.find("#prompt").clear()
        page.press(CONTROL, SHIFT, BACKSPACE, RELEASE)
        assert chats(page) == []
        page.click("#notice button", "Undo")
        assert chats(page) == ["One."]

    def test_characters_are_not_taken_from_a_field(self, page):
        page.press("/what?")
        assert page.script("return document.querySelector('#prompt').value") == "/what?"
        page.find("#search").send_keys("/?")
        assert page.script("return document.querySelector('#search').value") == "/?"
        assert not page.shows("#keys-list")
        page.find("#new").send_keys("/")
        assert page.focus == "prompt"

    def test_the_list(self, page):
        page.find("#new").send_keys("?")
        assert page.shows("#keys-list")
        assert page.texts("#keys-content dd")[:3] == [
            "Search the chats",
            "New chat",
            "Delete this chat",
        ]
        assert page.texts("#keys-content dt")[:2] == ["CtrlK", "CtrlShiftO"]
        page.press(CONTROL, "k", RELEASE)
        assert page.focus != "search", "not behind a dialog"
        page.press(ESCAPE)
        assert not page.shows("#keys-list")
        page.find("#open-keys").click()
        assert page.shows("#keys-list")
        page.press(ESCAPE)

    def test_the_chats_beside(self, page):
        for shown in (False, True):
            page.press(CONTROL, "b", RELEASE)
            assert page.shows("#sidebar") == shown
            assert page.shows("#open-sidebar") != shown
            end = "const one = document.documentElement; return one.scrollHeight - one.clientHeight"
            assert page.script(end) == 0, "an empty chat needs no scrolling"
        page.press(CONTROL, "b", RELEASE)
        page.press(CONTROL, "k", RELEASE)
        assert page.shows("#sidebar") and page.focus == "search"

    def test_the_chats_on_a_small_screen(self, page):
        page.size("phone")
        page.press(CONTROL, "k", RELEASE)
        assert page.shows("#sidebar") and page.focus == "search"
        for shown in (False, True):
            page.press(CONTROL, "b", RELEASE)
            assert page.shows("#sidebar") == shown


class TestChanged:
    def test_again(self, page):
        page.fake(pieces("a"), pieces("b"))
        page.answer("One.")
        page.click(".answer .tools button", "Answer again")
        until(lambda: page.text(".answer .text") == "b" and page.idle())
        assert page.count(".message") == 2
        assert page.asked()[1]["messages"] == page.asked()[0]["messages"]
        assert page.asked()[1]["seed"] != page.asked()[0]["seed"]
        assert page.text(".turner span") == "2 / 2"
        page.click(".turner button", "Earlier answer")
        assert page.text(".answer .text") == "a"
        page.reload()
        assert (page.text(".answer .text"), page.text(".turner span")) == ("a", "1 / 2")
        page.click(".turner button", "Later answer")
        assert page.text(".answer .text") == "b"

    def test_each_answer_keeps_what_followed_it(self, page):
        page.fake(*(pieces(one) for one in "abcd"))
        page.answer("One.")
        page.answer("Two.")
        page.click(".answer .tools button", "Answer again")
        until(lambda: page.texts(".answer .text") == ["c"] and page.idle())
        assert page.answer("Three.") == "d"
        assert page.asked()[-1]["messages"][1:] == [
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "Three."},
        ]
        page.click(".turner button", "Earlier answer")
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["One.", "Two."], ["a", "b"])
        page.click(".turner button", "Later answer")
        assert page.texts(".answer .text") == ["c", "d"]

    @pytest.mark.parametrize("is_read_again", [False, True])
    def test_a_page_that_is_left_before_a_new_answer_begins(self, page, is_read_again):
        """Neither the next question nor a new start of the page loses the earlier answer."""
        page.fake(pieces("a"), "never", pieces("c"))
        page.answer("One.")
        page.click(".answer .tools button", "Answer again")
        until(lambda: page.count(".answer[aria-busy=true]"))
        page.find("#new").click()
        page.click("#conversations .open", "One.")
        if is_read_again:
            page.reload()
            page.fake(pieces("c"))
        else:
            page.find("#stop").click()
        assert page.answer("Two.") == "c"
        assert page.texts(".answer .text") == ["a", "c"]

    def test_an_answer_that_fails_leaves_the_earlier_one(self, page):
        page.fake(pieces("a"), refusal("It failed.", "server_error", status=500))
        page.answer("One.")
        page.click(".answer .tools button", "Answer again")
        until(lambda: page.idle() and page.count(".answer .tools"))
        assert page.text(".answer .text") == "a"
        assert page.count(".turner") == 0

    def test_edit(self, page):
        page.fake(pieces("a"), pieces("b"), pieces("c"))
        page.answer("One.")
        page.answer("Two.")
        page.click(".question .tools button", "Edit")
        page.press("x", ESCAPE)
        assert page.texts(".asked") == ["One.", "Two."]
        page.click(".question .tools button", "Edit")
        page.press(" And more.", ENTER)
        until(lambda: page.text(".answer .text") == "c" and page.idle())
        assert page.texts(".asked") == ["One. And more."]
        assert page.asked()[-1]["messages"] == [{"role": "user", "content": "One. And more."}]
        assert page.text(".question .turner span") == "2 / 2"
        page.click(".question .turner button", "Earlier version")
        assert page.texts(".asked") == ["One.", "Two."]
        page.reload()
        assert page.texts(".answer .text") == ["a", "b"]
        assert page.text(".turner span") == "1 / 2"
        page.click(".question .turner button", "Later version")
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["One. And more."], ["c"])

    def test_versions_of_questions_and_answers_within_each_other(self, page):
        page.fake(*(pieces(one) for one in "abcdef"))
        page.answer("One.")
        page.click(".answer .tools button", "Answer again")
        until(lambda: page.text(".answer .text") == "b" and page.idle())
        page.answer("Two.")
        for more in ("x", "y"):
            page.script("document.querySelectorAll('.question .change')[1].click()")
            page.press(more, ENTER)
            until(lambda: page.count(".answer") == 2 and page.idle())
        assert page.texts(".turner span") == ["2 / 2", "3 / 3"]
        assert page.texts(".asked") == ["One.", "Two.xy"]
        page.click(".turner button", "Earlier version")
        page.click(".turner button", "Earlier version")
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["One.", "Two."], ["b", "c"])
        page.click(".turner button", "Earlier answer")
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["One."], ["a"])
        page.click(".turner button", "Later answer")
        page.reload()
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["One.", "Two."], ["b", "c"])
        assert page.texts(".turner span") == ["2 / 2", "1 / 3"]

    def test_an_answer_is_edited(self, page):
        page.fake(pieces("a"), pieces("b"))
        page.answer("One.")
        page.click(".answer .tools button", "Edit")
        page.press(" line", ENTER, "*more*")
        page.click(".edit button", "Save")
        assert page.text(".answer .text") == "a line\nmore"
        assert page.text(".cost") == "Edited"
        page.answer("Two.")
        assert page.asked()[1]["messages"][1] == {"role": "assistant", "content": "a line\n*more*"}
        page.reload()
        page.click(".turner button", "Earlier answer")
        assert page.texts(".answer .text") == ["a"]
        assert "tokens" in page.text(".cost")

    def test_delete(self, page):
        page.fake(*(pieces(one) for one in "abcd"))
        for question in ("One.", "Two.", "Three."):
            page.answer(question)
        page.script("document.querySelectorAll('.answer [aria-label=Delete]')[1].click()")
        assert page.texts(".answer .text") == ["a", "c"]
        assert page.texts(".asked") == ["One.", "Two.", "Three."]
        page.reload()
        page.fake(pieces("d"))
        assert page.answer("Four.") == "d"
        assert [one["content"] for one in page.asked()[0]["messages"]] == [
            "One.",
            "a",
            "Two.\n\nThree.",
            "c",
            "Four.",
        ]

    def test_a_question_that_is_deleted_takes_its_answer_along(self, page):
        page.fake(pieces("a"), pieces("b"))
        page.answer("One.")
        page.answer("Two.")
        page.script("document.querySelector('.question [aria-label=Delete]').click()")
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["Two."], ["b"])
        page.click("#notice button", "Undo")
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["One.", "Two."], ["a", "b"])
        for _ in range(2):
            page.script("document.querySelector('.question [aria-label=Delete]').click()")
        assert page.count(".message") == 0 and chats(page) == []
        page.click("#notice button", "Undo")
        page.reload()
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["Two."], ["b"])

    def test_of_several_versions_one_is_deleted(self, page):
        page.fake(*(pieces(one) for one in "abc"))
        page.answer("One.")
        page.click(".answer .tools button", "Answer again")
        until(lambda: page.text(".answer .text") == "b" and page.idle())
        page.click(".answer .tools button", "Delete")
        assert page.texts(".answer .text") == ["a"] and page.count(".turner") == 0
        page.click(".question .tools button", "Edit")
        page.press("x", ENTER)
        until(lambda: page.text(".answer .text") == "c" and page.idle())
        page.click(".question .tools button", "Delete")
        assert (page.texts(".asked"), page.texts(".answer .text")) == (["One."], ["a"])
        assert page.count(".turner") == 0

    def test_copy(self, page):
        page.driver.execute_cdp_cmd(
            "Browser.grantPermissions",
            {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
        )
        page.fake(pieces("Look:\n```py\nprint(1)\n```"))
        page.answer("One.")
        read = "const done = arguments[arguments.length - 1]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
        page.click(".code button")
        until(lambda: page.text(".code button") == "Copied")
        assert page.driver.execute_async_script(read) == "print(1)"
        page.click(".answer .tools button", "Copy")
        until(lambda: page.driver.execute_async_script(read) == "Look:\n```py\nprint(1)\n```")

    def test_copy_without_a_clipboard(self, page):
        """As on a page that comes over plain HTTP from another machine."""
        page.fake(pieces("a"))
        page.answer("One.")
        page.script(
            "Object.defineProperty(navigator, 'clipboard', {value: undefined}); document.execCommand = (name) => { window.copied = name + document.activeElement.value; return true }"
        )
        page.click(".answer .tools button", "Copy")
        until(lambda: page.script("return window.copied") == "copya")

    def test_settings(self, page):
        page.find("#open-settings").click()
        page.find("[name=manner][value=exact]").click()
        page.script(
            "document.querySelector('[name=answer]').value = 'short'; document.querySelector('#settings-form').dispatchEvent(new Event('input'))"
        )
        page.find("[name=theme] [value=dark]").click()
        assert (
            page.script("return getComputedStyle(document.body).backgroundColor")
            == "rgb(22, 23, 26)"
        )
        page.press(ESCAPE)
        page.reload()
        assert (
            page.script("return getComputedStyle(document.body).backgroundColor")
            == "rgb(22, 23, 26)"
        )
        numbers = {"top_k": 7, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.2}
        numbers |= {"presence_penalty": -0.5, "frequency_penalty": 0}
        page.set(**numbers)
        page.fake(pieces("a"), pieces("b"))
        page.answer("One.")
        assert page.asked()[0] | numbers == page.asked()[0]
        assert page.asked()[0]["temperature"] == 0
        assert page.asked()[0]["max_tokens"] == 256
        page.find("#open-settings").click()
        page.find("#settings-default").click()
        page.press(ESCAPE)
        page.answer("Two.")
        assert not {"temperature", *numbers} & page.asked()[1].keys()

    def test_models(self, page):
        several = """const real = window.fetch; window.fetch = async (path, options) => path.endsWith("v1/models")
            ? new Response(JSON.stringify({data: [{id: "one"}, {id: "two <b>", n_ctx: 4096}]})) : real(path, options)"""
        script = page.driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": several}
        )
        try:
            page.reload()
            assert page.texts("#model option") == ["one", "two <b>"]
            page.find("#model [value^=two]").click()
            page.fake(pieces("a"))
            page.answer("One.")
            assert page.asked()[0]["model"] == "two <b>"
            page.reload()
            assert page.script("return document.querySelector('#model').value") == "two <b>"
        finally:
            page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


class TestFiles:
    def downloaded(self, page, entry):
        page.click("[popovertarget=menu]")
        page.click("#menu button", entry)
        until(
            lambda: [
                one
                for one in page.driver.downloads.iterdir()
                if not one.name.endswith(".crdownload")
            ]
        )
        (path,) = (
            one for one in page.driver.downloads.iterdir() if not one.name.endswith(".crdownload")
        )
        text = path.read_text(encoding="utf-8")
        path.unlink()
        return path.name, text

    def take_in(self, page, tmp_path, text):
        path = tmp_path / "chats.json"
        path.write_text(text, encoding="utf-8")
        page.script("document.querySelector('#import').hidden = false")
        page.find("#import").send_keys(str(path))

    def test_markdown(self, page):
        page.fake(pieces("**Yes.**", thought="hm"))
        page.answer("What is it?")
        name, text = self.downloaded(page, "Export this chat as Markdown")
        assert name == "what-is-it.md"
        assert (
            text
            == f"# What is it?\n\n## You\n\nWhat is it?\n\n## {page.text('#model-name')}\n\n**Yes.**\n"
        )

    def test_there_and_back(self, page, tmp_path):
        page.fake(pieces("a", ("b", True)), pieces("c"))
        page.answer("One.")
        page.find("#new").click()
        page.answer("Two.")
        name, text = self.downloaded(page, "Export all chats as JSON")
        assert name == "chats.json"
        assert [one["messages"][0]["content"] for one in json.loads(text)["conversations"]] == [
            "Two.",
            "One.",
        ]
        page.click("[popovertarget=menu]")
        page.click("#menu button", "Delete all chats")
        assert chats(page) == []
        self.take_in(page, tmp_path, text)
        until(lambda: chats(page) == ["Two.", "One."])
        assert page.text("#notice p") == "2 chats imported."
        self.take_in(page, tmp_path, text)
        until(lambda: len(chats(page)) == 4)
        _, one = self.downloaded(page, "Export this chat as JSON")
        assert len(json.loads(one)["conversations"]) == 1

    def test_an_import_of_messages(self, page, tmp_path):
        messages = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "<b>q</b>"},
            {"role": "assistant", "content": "a"},
        ]
        self.take_in(page, tmp_path, json.dumps(messages))
        until(lambda: chats(page) == ["<b>q</b>"])
        assert page.texts(".asked") == ["<b>q</b>"]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "no",
            "7",
            "{}",
            '{"conversations": 7}',
            '{"conversations": [7, {"messages": [{"role": "user"}]}]}',
        ],
    )
    def test_an_import_of_something_else(self, page, tmp_path, text):
        self.take_in(page, tmp_path, text)
        until(lambda: page.text("#trouble p") == "chats.json holds no chats.")
        assert chats(page) == []

    def test_attached(self, page, tmp_path):
        (tmp_path / "notes.md").write_text("```\nx\n```\n", encoding="utf-8")
        (tmp_path / "other.txt").write_text("y", encoding="utf-8")
        page.script("document.querySelector('#file').hidden = false")
        page.find("#file").send_keys(f"{tmp_path / 'notes.md'}\n{tmp_path / 'other.txt'}")
        until(lambda: page.texts("#files li") == ["notes.md10 bytes", "other.txt1 byte"])
        page.click("#files button", "Remove other.txt")
        page.fake(pieces("a"), pieces("b"))
        page.answer("Summarise.")
        assert (
            page.asked()[0]["messages"][0]["content"]
            == "File notes.md:\n````\n```\nx\n```\n````\n\nSummarise."
        )
        assert page.count("#files li") == 0
        assert page.text(".file summary") == "notes.md (4 lines)"
        page.reload()
        page.fake(pieces("c"))
        page.answer("More.")
        assert "````" in page.asked()[0]["messages"][0]["content"]

    PASTE = """const data = new DataTransfer(); data.setData("text/plain", arguments[0]);
        const event = new ClipboardEvent("paste", {clipboardData: data, cancelable: true, bubbles: true});
        return document.querySelector("#prompt").dispatchEvent(event)"""

    def test_a_long_paste_is_attached(self, page):
        assert page.script(self.PASTE, "x" * 1999), "the browser puts in a short one"
        assert not page.script(self.PASTE, "long " * 410)
        until(lambda: page.texts("#files li") == ["pasted.txt2 KiB"])
        assert not page.script(self.PASTE, "y" * 3000)
        until(lambda: page.texts("#files li") == ["pasted.txt2 KiB", "pasted-2.txt2.9 KiB"])
        assert page.text("#notice p") == "The long text is attached as pasted-2.txt."
        page.type("#prompt", "Look: ")
        page.click("#notice button", "Put it into the message")
        assert (
            page.script("return document.querySelector('#prompt').value") == "Look: " + "y" * 3000
        )
        assert page.texts("#files li") == ["pasted.txt2 KiB"]
        assert page.focus == "prompt"
        page.type("#prompt", "Summarise.")
        page.fake(pieces("a"))
        page.press(ENTER)
        until(lambda: page.count(".answer") and page.idle())
        sent = page.asked()[0]["messages"][0]["content"]
        assert sent == "File pasted.txt:\n```\n" + "long " * 410 + "\n```\n\nSummarise."
        assert page.text(".file summary") == "pasted.txt (1 line)"

    def test_a_paste_that_is_too_long(self, page):
        assert not page.script(self.PASTE, "x" * ((1 << 20) + 1))
        until(lambda: page.text("#trouble p") == "pasted.txt: larger than 1,024 KiB.")
        assert page.count("#files li") == page.count("#notice p") == 0

    SEES = """const real = window.fetch; window.fetch = async (path, options) => path.endsWith("v1/models")
        ? new Response(JSON.stringify({data: [["blind", ["text"]], ["seer", ["text", "image"]]].map(([id, input_modalities]) =>
            ({id, context_length: 4096, loaded: true, architecture: {input_modalities}}))})) : real(path, options)"""

    def test_images(self, page, tmp_path):
        page.driver.execute_cdp_cmd("Page.enable", {})
        script = page.driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": self.SEES}
        )
        try:
            page.reload()
            self.show_images(page, tmp_path)
        finally:
            page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

    def show_images(self, page, tmp_path):
        draw = """const [width, height, type] = arguments, done = arguments[3], canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [width, height]; canvas.getContext("2d").fillRect(0, 0, width / 2, height);
            done(canvas.toDataURL(type).split(",")[1])"""
        for name, width, kind in (("a.png", 40, "image/png"), ("wide.webp", 2000, "image/webp")):
            data = page.driver.execute_async_script(draw, width, 20, kind)
            (tmp_path / name).write_bytes(base64.b64decode(data))
        page.script("document.querySelector('#file').hidden = false")
        page.find("#file").send_keys(f"{tmp_path / 'a.png'}\n{tmp_path / 'wide.webp'}")
        until(lambda: page.text("#trouble p") == "blind cannot see images. seer can.")
        assert [one.split(".")[0] for one in page.texts("#files li")] == ["a", "wide"]
        page.say("What is it?")
        assert page.count(".message") == 0, "before it is sent"
        page.click("#trouble button", "Use seer")
        assert page.text("#trouble") == ""
        page.fake(pieces("Grey."), pieces("b"), pieces("c"))
        page.answer("What is it?")
        small, wide, text = page.asked()[0]["messages"][0]["content"]
        assert (
            base64.b64decode(small["image_url"].removeprefix("data:image/png;base64,"))
            == (tmp_path / "a.png").read_bytes()
        )
        assert wide["image_url"].startswith("data:image/jpeg;base64,")
        size = "const done = arguments[1], one = new Image(); one.onload = () => done([one.width, one.height]); one.src = arguments[0]"
        assert page.driver.execute_async_script(size, wide["image_url"]) == [1280, 13]
        assert text == {"type": "input_text", "text": "What is it?"}
        assert page.texts(".image figcaption") == ["a.png", "wide.webp"]
        page.reload()
        assert page.count(".image img") == 2, "they are kept"
        page.script(
            "document.querySelector('#model').value = 'blind'; document.querySelector('#model').onchange()"
        )
        page.fake(pieces("d"))
        page.answer("And?")
        sent = page.asked()[0]["messages"]
        assert (
            "an image, which you cannot see" in sent[0]["content"] and sent[2]["content"] == "And?"
        )
        page.script(
            "document.querySelector('.answer .tools [aria-label=\"Answer again\"]').click()"
        )
        assert page.text("#trouble p") == "blind cannot see images. seer can."

    def test_a_pdf(self, page, tmp_path):
        (tmp_path / "Notes.pdf").write_bytes(pdf("The fox sleeps.", "A bear."))
        (tmp_path / "bad.PDF").write_bytes(b"%PDF-1.4 nothing")
        page.script("document.querySelector('#file').hidden = false")
        page.find("#file").send_keys(f"{tmp_path / 'Notes.pdf'}\n{tmp_path / 'bad.PDF'}")
        until(lambda: page.text("#trouble p").startswith("bad.PDF: The PDF cannot be read"))
        assert [one[:9] for one in page.texts("#files li")] == ["Notes.pdf"]
        page.fake(pieces("a"))
        page.answer("Summarise.")
        assert (
            page.asked()[0]["messages"][0]["content"]
            == "File Notes.pdf:\n```\nThe fox sleeps.\n\nA bear.\n```\n\nSummarise."
        )
        assert page.text(".file summary") == "Notes.pdf (3 lines)"
        page.complaints()  # the refused file

    @pytest.mark.parametrize(("data", "why"), [
        (b"\x89PNG\xff\xfe", "not a text file in UTF-8"), (b"a\0b", "not a text file"), (b" \n", "empty"), (b"x" * (1 << 21), "larger than 1,024 KiB"),
    ])  # fmt: skip
    def test_files_that_are_not_text(self, page, tmp_path, data, why):
        (tmp_path / "a.bin").write_bytes(data)
        page.script("document.querySelector('#file').hidden = false")
        page.find("#file").send_keys(str(tmp_path / "a.bin"))
        until(lambda: page.text("#trouble p") == f"a.bin: {why}.")
        style = "return getComputedStyle(document.querySelector('#trouble p'), '::first-letter')"
        assert page.script(f"{style}.textTransform") == "none", "names are shown as they are"
        assert page.count("#files li") == 0


class TestTrouble:
    def test_a_setting_that_is_no_good(self, page):
        page.set(temperature=1e9)
        page.say("Hello.")
        assert page.text("#trouble").startswith("Temperature: ")
        assert page.focus == "temperature"
        assert page.count(".message") == 0
        page.press(ESCAPE)
        assert page.script("return document.querySelector('#prompt').value") == "Hello."

    def test_try_again(self, page):
        page.fake(refusal("The queue is full.", None, status=429), pieces("a"))
        page.say("Hello.")
        until(lambda: page.text("#trouble p") == "The queue is full.")
        assert page.texts(".asked") == ["Hello."]
        assert page.shows("#pending")
        page.click("#trouble button", "Try again")
        until(lambda: page.text(".answer .text") == "a" and page.idle())
        assert page.text("#trouble") == ""
        assert not page.shows("#pending")
        page.complaints()

    def test_a_question_without_an_answer_is_kept(self, page):
        page.fake(refusal("The queue is full.", None, status=429))
        page.say("Hello.")
        until(lambda: page.text("#trouble"))
        page.reload()
        assert page.texts(".asked") == ["Hello."]
        page.fake(pieces("a"))
        page.find("#answer").click()
        until(lambda: page.text(".answer .text") == "a" and page.idle())
        page.complaints()

    def test_a_template_without_a_system_prompt(self, page):
        page.set(system="Be brief.")
        page.fake(refusal("System role not supported", "invalid_value", "input"), pieces("a"))
        page.say("Hello.")
        until(lambda: page.text("#trouble"))
        page.click("#trouble button", "Send without the system prompt")
        until(lambda: page.text(".answer .text") == "a" and page.idle())
        assert [one["role"] for one in page.asked()[1]["messages"]] == ["user"]
        page.complaints()

    def test_an_answer_that_breaks_off(self, page):
        page.fake(
            [
                pieces("half")[0],
                {
                    "type": "response.failed",
                    "response": {"error": {"message": "The server failed."}},
                },
            ],
            pieces("whole"),
        )
        page.say("Hello.")
        until(lambda: page.text("#trouble p") == "The server failed.")
        assert page.text(".answer .text") == "half", "what it had stays"
        page.click("#trouble button", "Try again")
        until(lambda: page.text(".answer .text") == "whole" and page.idle())
        assert page.asked()[1]["messages"] == [{"role": "user", "content": "Hello."}]

    def test_a_limit_of_the_server(self, tales, driver):
        with serve_in_thread(tales, max_tokens=7) as server:
            page = Page(driver, server.url)
            until(lambda: page.text("#model-name"))
            assert page.answer("Hello.")
            assert page.bodies()[-1]["max_tokens"] == 7

    def test_a_server_that_has_stopped(self, tales, driver):
        with serve_in_thread(tales) as server:
            page = Page(driver, server.url)
            until(lambda: page.text("#model-name"))
        page.say("Hello.")
        until(lambda: page.text("#trouble"))
        assert (
            page.text("#trouble p")
            == "The server does not answer. Is gguf-spec serve still running?"
        )
        assert page.texts("#trouble button") == ["Try again", ""]

    def test_a_server_that_ends_meanwhile(self, endless, driver):
        """Earlier messages stay."""
        with serve_in_thread(endless) as server:
            page = Page(driver, server.url)
            until(lambda: page.text("#model-name"))
            page.say("a")
            until(lambda: len(page.text(".text")) > 100)
            server.close(grace=0)
        until(lambda: page.text("#trouble"))
        assert page.text("#trouble p") == "The server is shutting down."
        assert len(page.text(".text")) > 100
        assert page.idle()

    def test_a_key(self, tales, driver):
        with serve_in_thread(tales, api_key="open-sesame") as server:
            page = Page(driver, server.url)
            until(lambda: page.text("#trouble"))
            assert page.text("#trouble p") == "This server needs an API key. Enter it below."
            assert page.focus == "key"
            for wrong in ("wrong", "wröng"):
                page.press(wrong, ENTER)
                until(
                    lambda: (
                        page.text("#trouble p")
                        == "This is not the server's API key. Enter it below."
                    )
                )
                page.script("document.querySelector('#trouble').replaceChildren()")
            page.press("open-sesame", ENTER)
            until(lambda: page.text("#model-name"))
            until(lambda: page.focus == "prompt")
            assert not page.shows("#ask-key")
            stored = page.script(
                "return [JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage}), document.cookie]"
            )
            assert ["open-sesame" in one for one in stored] == [False, True, False]
            page.set(max_tokens=5)
            assert page.answer("Hello.")


class TestTakenUpAgain:
    """Answers go on in the server when their page is loaded again, and in another tab."""

    def begin(self, page, text="a"):
        page.say(text)
        until(lambda: len(page.text(".answer .text")) > 50)
        return page.text(".answer .text")

    @pytest.mark.parametrize("page", ["for_ever"], indirect=True)
    def test_after_a_reload(self, page):
        page.set(temperature=0, max_tokens=40_000)
        before = self.begin(page)
        page.reload()
        until(lambda: page.shows("#stop"))
        assert answering(page) == ["a"]
        until(lambda: len(page.text(".answer .text")) > len(before) + 50)
        assert page.text(".answer .text").startswith(before)
        assert page.count(".answer") == 1
        page.find("#stop").click()
        until(page.idle)
        assert page.text(".cost").startswith("Stopped")
        kept = page.text(".answer .text")
        page.reload()
        assert page.text(".answer .text") == kept
        assert page.idle() and not answering(page)

    def test_the_text_is_that_of_an_answer_without_a_reload(self, page):
        page.set(seed=3, max_tokens=300)
        wanted = page.answer("Tell me of a fox.")
        page.find("#new").click()
        page.say("Tell me of a fox.")
        until(lambda: page.text(".answer .text"))
        for _ in range(2):
            page.reload()
        until(lambda: page.count(".answer") and page.idle())
        assert page.text(".answer .text") == wanted
        assert "tokens/s" in page.text(".cost")
        whole = """const {messages: [, {content, marks}]} = JSON.parse(localStorage["gguf-spec.chat." + sessionStorage["gguf-spec.current"]]);
            return [marks.reduce((sum, n) => sum + n, 0), content.length]"""
        assert page.script(whole)[0] == page.script(whole)[1] > 100

    @pytest.mark.parametrize("page", ["for_ever"], indirect=True)
    def test_in_another_tab_which_stops_it(self, page):
        page.set(temperature=0, max_tokens=40_000)
        self.begin(page)
        first = page.driver.current_window_handle
        page.driver.switch_to.new_window("tab")
        try:
            page.size("desktop")
            page.open()
            until(lambda: chats(page) == ["a"])
            page.click("#conversations .open", "a")
            until(lambda: page.shows("#stop"))
            n = len(page.text(".answer .text"))
            until(lambda: len(page.text(".answer .text")) > n + 50)
            page.find("#stop").click()
            until(page.idle)
        finally:
            page.driver.close()
            page.driver.switch_to.window(first)
        until(page.idle)
        assert page.text(".cost").startswith("Stopped")

    def test_other_chats_than_the_open_one(self, page):
        page.set(seed=3, max_tokens=200)
        page.say("Tell me of a fox.")
        until(lambda: page.text(".answer .text"))
        page.find("#new").click()
        page.reload()
        until(lambda: chats(page) == ["Tell me of a fox."] and not answering(page))
        page.click("#conversations .open", "Tell me of a fox.")
        assert "tokens/s" in page.text(".cost")

    def test_one_that_the_server_does_not_know(self, page):
        page.fake("held")
        page.say("One.")
        until(lambda: page.count(".answer[aria-busy=true]"))
        page.give(0, "half")
        until(lambda: page.text(".answer .text") == "half")
        page.reload()
        until(lambda: page.idle() and not answering(page))
        assert page.text(".answer .text") == "half"
        assert page.text(".cost").startswith("Stopped")
        assert page.text("#trouble") == ""
        assert not page.complaints()

    def test_a_connection_that_breaks(self, page):
        page.set(seed=3, max_tokens=200)
        wanted = page.answer("Tell me of a fox.")
        page.find("#new").click()
        page.script("""window.real = window.fetch; let cut = 0; window.fetch = async (path, options) => {
            const response = await window.real(path, options);
            if (!path.includes("v1/responses") || cut++) return response;
            const reader = response.body.getReader(), {value} = await reader.read();
            reader.cancel();
            return new Response(value);
        }""")
        assert page.answer("Tell me of a fox.") == wanted
