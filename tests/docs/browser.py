"""Chromium without a window, driven by chromedriver's HTTP interface (W3C WebDriver): no Python
package, no network."""

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
DISABLED = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    *(f"--disable-{what}" for what in DISABLED),
)


def _call(method: str, url: str, body: dict | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(json.load(error)["value"]["message"].partition("\n")[0]) from None


def wait_for(condition, seconds: float = 30.0) -> Any:
    """The first true value of a function that is called again and again."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the page did not get so far"
        time.sleep(0.1)
    return value


class Browser:
    """A session at a driver's address."""

    def __init__(self, driver: str, profile: str):
        options = {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        asked = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = _call("POST", f"{driver}/session", {"capabilities": {"alwaysMatch": asked}})
        self.address = f"{driver}/session/{session['sessionId']}"
        # Chromium 150 tells pages of no focus while none of its windows has it.
        self._command("Emulation.setFocusEmulationEnabled", {"enabled": True})

    def open(self, url: str) -> None:
        """Goes to a page, and waits until it is loaded."""
        _call("POST", f"{self.address}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What the body of a JavaScript function returns."""
        return _call("POST", f"{self.address}/execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        """A click on the first element that a CSS selector finds."""
        _call("POST", f"{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Keys into the first such element; or, into a field of files, the path of one."""
        _call("POST", f"{self._element(selector)}/value", {"text": text})

    def _element(self, selector: str) -> str:
        by = {"using": "css selector", "value": selector}
        return f"{self.address}/element/{next(iter(_call('POST', f'{self.address}/element', by).values()))}"

    def picture(self) -> bytes:
        """The page as it is shown, a PNG file."""
        return base64.b64decode(_call("GET", f"{self.address}/screenshot"))

    def console(self) -> list[str]:
        """Errors and warnings since the last call."""
        lines = _call("POST", f"{self.address}/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]

    def resize(self, width: int, height: int = 900) -> None:
        """Gives pages this size, also below the smallest that a window has."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Pages are shown light or dark."""
        self._command(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    def _command(self, name: str, params: dict) -> None:
        _call("POST", f"{self.address}/goog/cdp/execute", {"cmd": name, "params": params})


@contextlib.contextmanager
def browser(profile: str) -> Iterator[Browser]:
    """A browser with an empty profile in a new folder."""
    assert DRIVER
    driver = subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert driver.stdout
    try:
        line = next(line for line in driver.stdout if "started successfully on port" in line)
        opened = Browser(
            f"http://127.0.0.1:{line.rstrip().rstrip('.').rpartition(' ')[2]}", profile
        )
        try:
            yield opened
        finally:
            _call("DELETE", opened.address)
    finally:
        driver.terminate()
        driver.wait(30)
        driver.stdout.close()
