"""Chromium, and the page in it as its user sees it."""

import json

from selenium import webdriver

from tests.server.conftest import until

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WIDTHS = {"desktop": (1280, 800), "phone": (390, 844), "narrow": (320, 640)}
ENTER, ESCAPE, TAB, SHIFT, RELEASE = "\ue007", "\ue00c", "\ue004", "\ue008", "\ue000"


def start(chromium, driver, profile):
    """Start a browser that keeps its console and its requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(driver))


class Page:
    """The page, as its user sees it."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        self.size("desktop")
        driver.get(url)
        until(lambda: self.script("return document.readyState") == "complete")

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

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

    def shows(self, selector):
        return self.script(
            "return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector
        )

    @property
    def focus(self):
        return self.script("return document.activeElement.id")

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def type(self, selector, text):
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def set(self, **settings):
        self.find("[popovertarget=settings]").click()
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
        n = self.count(".turn")
        self.say(text)
        until(lambda: self.count(".turn") > n and self.idle(), 60)
        return self.texts(".said")[-1]

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
        """Return the addresses that were asked for since the last call."""
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
        """Return what the browser's console was told since the last call."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] != "DEBUG"]
