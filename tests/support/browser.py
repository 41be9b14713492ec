"""Chromium, and the page in it."""

import json
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.common.actions.action_builder import ActionBuilder

from tests.server.conftest import until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = [
    pytest.mark.full,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)",
    ),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WIDTHS = {"desktop": (1280, 800), "phone": (390, 844), "narrow": (320, 640)}
ENTER, ESCAPE, TAB, SHIFT, RELEASE = "\ue007", "\ue00c", "\ue004", "\ue008", "\ue000"
CONTROL, BACKSPACE = "\ue009", "\ue003"

# Answers the next chat requests in place of the server: each with a list of pieces of the stream,
# with an error, or never. "held" begins an answer that `Page.give` goes on with. The requests are kept in `asked`, the
# held answers in `held`.
FAKE = """
window.real ??= window.fetch;
window.asked = [];
window.held = [];
window.cancelled = [];
const replies = arguments[0];
window.fetch = async (path, options) => {
  const isFake = window.held.some((one) => path.includes(one.id));
  if (isFake && path.endsWith("/cancel")) { window.cancelled.push(path.match(/resp_0*(\\d+)/)[1] - 1); return new Response("{}"); }
  if (isFake) return new Response("{}", {status: 404});
  if (!path.endsWith("v1/responses") || !replies.length) return window.real(path, options);
  const {input, ...body} = JSON.parse(options.body);
  window.asked.push({...body, messages: input});
  const write = (piece, number) => `data: ${JSON.stringify({...piece, sequence_number: number})}\\n\\n`;
  const reply = replies.shift();
  const aborted = (end) => options.signal.addEventListener("abort", () => end(options.signal.reason));
  if (reply === "never") return new Promise((_, reject) => aborted(reject));
  if (reply === "held") {
    const id = `resp_${String(window.held.length + 1).padStart(32, "0")}`;
    const one = {isStopped: false, id, n: 1, write};
    window.held.push(one);
    return new Response(new ReadableStream({start: (stream) => {
      one.stream = stream;
      stream.enqueue(new TextEncoder().encode(write({type: "response.created", response: {id}}, 0)));
      aborted((reason) => { one.isStopped = true; stream.error(reason); });
    }}));
  }
  if (reply.status) return new Response(JSON.stringify({error: reply.error}), {status: reply.status});
  return new Response(reply.map(write).join(""));
};
"""


ENDS = {"stop": "completed", "length": "incomplete"}


def start(chromium, driver, profile):
    """Start a browser that keeps its console and its requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(driver))


def pieces(*texts, thought="", finish="stop", drafted=0, accepted=0, speedup=1.0, prompt_tokens=20):
    """Return the pieces of a streamed answer; texts may be `(text, accepted)`."""
    thoughts = [{"type": "response.reasoning_text.delta", "delta": thought}] if thought else []
    parts = [one if isinstance(one, tuple) else (one, False) for one in texts]
    said = [
        {
            "type": "response.output_text.delta",
            "delta": text,
            "speculation": {
                "tokens": 2,
                "rounds": 1,
                "drafted": drafted,
                "accepted": accepted,
                "text": [[text, kept]],
            },
        }
        for text, kept in parts
    ]
    speculation = {"tokens_per_s": 40.0, "speedup": speedup}
    return [
        *thoughts,
        *said,
        {
            "type": f"response.{ENDS[finish]}",
            "response": {"usage": {"input_tokens": prompt_tokens, "speculation": speculation}},
        },
    ]


def refusal(message, code, param=None, status=400):
    return {"status": status, "error": {"message": message, "code": code, "param": param}}


class Page:
    """The page in the browser."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        self.size("desktop")
        self.open()

    def open(self):
        self.driver.get(self.url)
        until(lambda: self.script("return document.readyState") == "complete")

    def reload(self):
        self.driver.refresh()
        until(lambda: self.script("return document.readyState") == "complete")
        until(lambda: self.text("#model-name"))

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def module(self, name, text, *arguments):
        """Run a script with the exports of one of the page's modules as `it`."""
        done = f"const done = arguments[arguments.length - 1]; import('/page/{name}').then((it) => done((() => {{ {text} }})()))"
        return self.driver.execute_async_script(done, *arguments)

    def fake(self, *replies):
        self.script(FAKE, list(replies))

    def give(self, number, *texts, ends=False):
        """Go on with a held answer: with these pieces, and its end."""
        more = pieces(*texts) if ends else pieces(*texts)[: len(texts)]
        self.script(
            """const [number, more, ends] = arguments, one = window.held[number];
            for (const piece of more) one.stream.enqueue(new TextEncoder().encode(one.write(piece, one.n++)));
            if (ends) one.stream.close();""",
            number, more, ends,
        )  # fmt: skip

    def stopped(self):
        """Return for each held answer whether the page ended it."""
        return self.script("return window.held.map((one) => one.isStopped)")

    def asked(self):
        """Return the requests to the fake."""
        return self.script("return window.asked")

    def text(self, selector):
        return self.script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        ).strip()

    def texts(self, selector):
        return self.script(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)",
            selector,
        )

    def count(self, selector):
        return len(self.texts(selector))

    def click_at(self, selector):
        """Click where an element is, without the scrolling of `find(...).click()` before it."""
        place = "const place = document.querySelector(arguments[0]).getBoundingClientRect();"
        at = self.script(
            place + "return [place.x + place.width / 2, place.y + place.height / 2]", selector
        )
        actions = ActionBuilder(self.driver)
        actions.pointer_action.move_to_location(*map(int, at)).click()
        actions.perform()

    def shows(self, selector):
        return self.script(
            "return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector
        )

    @property
    def focus(self):
        return self.script("return document.activeElement.id")

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def click(self, selector, text=None):
        """Click an element; with a text the one whose text or label this is."""
        elements = self.driver.find_elements("css selector", selector)
        shown = [one for one in elements if one.is_displayed()]
        names = [one.text or one.get_attribute("aria-label") for one in shown]
        shown[names.index(text) if text else 0].click()

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def type(self, selector, text):
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def set(self, **settings):
        self.find("#open-settings").click()
        self.script("document.querySelector('#settings details').open = true")
        for name, value in settings.items():
            self.type(f"#{name}", str(value))
        self.press(ESCAPE)
        assert not self.shows("#settings")
        self.find("#prompt").click()

    def say(self, text):
        self.type("#prompt", text)
        self.press(ENTER)

    def idle(self):
        return self.shows("#send") and not self.count("[aria-busy=true]")

    def answer(self, text):
        """Send a text, and wait for the end of the answer."""
        n = self.count(".message")
        self.say(text)
        until(lambda: self.count(".message") > n + 1 and self.idle())
        return self.texts(".answer .text")[-1]

    def size(self, name, scheme="light"):
        width, height = WIDTHS[name]
        metrics = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": name != "desktop",
        }
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    def requests(self):
        """Return the addresses requested since the last call."""
        told = [json.loads(one["message"])["message"] for one in self.driver.get_log("performance")]
        return [
            one["params"]["request"]["url"]
            for one in told
            if one["method"] == "Network.requestWillBeSent"
        ]

    def bodies(self):
        """Return what was posted since the last call."""
        told = [json.loads(one["message"])["message"] for one in self.driver.get_log("performance")]
        sent = [
            one["params"]["request"] for one in told if one["method"] == "Network.requestWillBeSent"
        ]
        return [json.loads(one["postData"]) for one in sent if one.get("postData")]

    def complaints(self):
        """Return the messages of the browser's console since the last call."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] != "DEBUG"]
