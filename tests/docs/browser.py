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

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _call(method: str, url: str, body: dict | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        with error:
            failure = json.load(error)["value"]
        first_line, _, _ = failure["message"].partition("\n")
        raise RuntimeError(first_line) from None


def wait_for(condition, seconds: float = 30.0) -> Any:
    """Calls a function until it returns a true value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"the condition was still false after {seconds} s"
        time.sleep(0.1)


class Browser:
    """A session at a driver's address."""

    def __init__(self, driver: str, profile: str):
        options = {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        required = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = _call("POST", f"{driver}/session", {"capabilities": {"alwaysMatch": required}})
        self.address = f"{driver}/session/{session['sessionId']}"
        # Chromium 150 sends pages no focus events while none of its windows has the focus.
        self._command("Emulation.setFocusEmulationEnabled", {"enabled": True})

    def open(self, url: str) -> None:
        """Opens a page, and waits until it is loaded."""
        _call("POST", f"{self.address}/url", {"url": url})

    def run(self, script: str) -> Any:
        """Runs the body of a JavaScript function, and returns its value."""
        return _call("POST", f"{self.address}/execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        """Clicks the first element that matches a CSS selector."""
        _call("POST", f"{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Types into the first such element. A file field takes a path."""
        _call("POST", f"{self._element(selector)}/value", {"text": text})

    def _element(self, selector: str) -> str:
        query = {"using": "css selector", "value": selector}
        element = _call("POST", f"{self.address}/element", query)
        [identifier] = element.values()
        return f"{self.address}/element/{identifier}"

    def picture(self) -> bytes:
        """A screenshot of the page, a PNG file."""
        encoded = _call("GET", f"{self.address}/screenshot")
        return base64.b64decode(encoded)

    def console(self) -> list[str]:
        """Errors and warnings since the last call."""
        lines = _call("POST", f"{self.address}/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]

    def resize(self, width: int, height: int = 900) -> None:
        """Gives pages this size, which may be smaller than any window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Makes pages prefer the colour scheme "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._command("Emulation.setEmulatedMedia", {"features": [feature]})

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
        port = line.split()[-1].rstrip(".")
        opened = Browser(f"http://127.0.0.1:{port}", profile)
        try:
            yield opened
        finally:
            _call("DELETE", opened.address)
    finally:
        driver.terminate()
        driver.wait(30)
        driver.stdout.close()
