"""Logs in at the page with headless Chromium. The provider is at `localhost` and the server at `127.0.0.1`, which are different sites for a
browser: it applies SameSite to the cookies, and the content security policy to the redirects."""

import os
import re
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../page.d"))
from browser import Browser, until  # noqa: E402


def submit(browser):
    browser.run("document.querySelector('form [type=submit], form button').click()")


def has(browser, selector):
    return browser.run("return !!document.querySelector(arguments[0])", selector)


def log_in(server, port, user, picture):
    """Returns rows of the table: name, whether it is as required, and what was shown."""
    browser = Browser(port)
    rows = []
    try:
        browser.open(f"{server}/")
        browser.run("[...document.querySelectorAll('a,button')].find(e => /Lab ID/.test(e.textContent)).click()")
        until("login form of the provider", lambda: has(browser, "[name=login]"))
        browser.type("[name=login]", user)
        browser.type("[name=password]", "x")
        submit(browser)
        until("consent form of the provider", lambda: not has(browser, "[name=login]") and has(browser, "form"))
        submit(browser)
        until("page of the server", lambda: browser.run("return location.href") == f"{server}/")
        text = browser.text()
        rows.append((f"Chromium: {user} logs in", user in text and "Log out" in text, re.sub(r"\s+", " ", text)[:120]))
        browser.open(f"{server}/")
        text = browser.text()
        rows.append(("Chromium: the session continues", user in text and "Log out" in text, re.sub(r"\s+", " ", text)[:120]))
        browser.picture(picture)
        # The provider's pages for development load fonts from the internet.
        errors = [error for error in browser.complaints() if server in error]
        rows.append(("Chromium: reports no error", not errors, "; ".join(errors)))
    finally:
        browser.end()
    return rows
