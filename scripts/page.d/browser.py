"""Chromium over WebDriver's HTTP (https://www.w3.org/TR/webdriver2/), with Python's standard library only."""

import base64
import json
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATIENCE = 60
# Waits until the page is painted: the second frame starts after the first was painted.
PAINTED = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[0], 0)));"


class Browser:
    def __init__(self, port):
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}", "--log-level=SEVERE"], stdout=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        until("chromedriver answers", lambda: self.ask("GET", "/status").get("ready"))
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
        options = {"binary": "/usr/bin/chromium", "args": arguments}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{session['sessionId']}"
        self.size(1280, 800)

    def ask(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None
        except urllib.error.URLError:
            return {}

    def end(self):
        try:
            self.ask("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def cdp(self, command, **parameters):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector):
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        return found[ELEMENT]

    def click(self, selector):
        self.ask("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.ask("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def keys(self, text):
        keys = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})

    def chord(self, text):
        """Presses the first key, and the others while the first one is held."""
        keys = [{"type": "keyDown", "value": key} for key in text] + [{"type": "keyUp", "value": key} for key in reversed(text)]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})

    def text(self):
        return self.run("return document.body.innerText")

    def size(self, width, height):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, is_dark):
        value = "dark" if is_dark else "light"
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def script(self, is_on):
        self.cdp("Emulation.setScriptExecutionDisabled", value=not is_on)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.ask("GET", "/screenshot")))

    def whole_picture(self, width, path):
        """Takes a picture of the whole page, including the parts outside of the window. Enlarges the window."""
        self.size(width, min(self.run("return document.documentElement.scrollHeight"), 4000))
        self.ask("POST", "/execute/async", {"script": PAINTED, "args": []})
        self.picture(path)

    def complaints(self):
        """Returns errors that the browser reports: scripts or styles that the policy blocks, and script errors."""
        return [entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]


def until(what, is_so):
    end = time.monotonic() + PATIENCE
    while True:
        value = is_so()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"never: {what}")
        time.sleep(0.1)
