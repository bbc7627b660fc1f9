"""Checks the pages with axe-core (https://github.com/dequelabs/axe-core), and takes a picture of each page."""

import json
import os
import re
from collections import Counter
from datetime import datetime, timedelta, timezone

from browser import until
from rack import Agent, machine_id

IMPACTS = ("critical", "serious", "moderate", "minor")
RUN = """const done = arguments[0];
    axe.run(document).then((found) => done(found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) =>
        node.target.join(" ") + ": " + (node.any.concat(node.all, node.none)[0] || {}).message)])));"""
# Name of the mode, width and height of the window, and whether the browser prefers dark colors.
MODES = (("light", 1280, 800, False), ("dark", 1280, 800, True), ("phone", 390, 844, False))


class AccessibilityCheck:
    """Checks pages, and counts the violations by impact in each mode."""

    def __init__(self, browser, axe, pictures):
        self.browser, self.pictures = browser, pictures
        self.totals = {name: Counter() for name, *_ in MODES}
        self.severe, self.too_wide, self.pages = [], [], 0
        with open(axe) as file:
            self.source = file.read()
        browser.ask("POST", "/timeouts", {"script": 120000})
        os.makedirs(pictures, exist_ok=True)

    def check(self, name):
        self.pages += 1
        results = []
        for mode, width, height, is_dark in MODES:
            self.browser.size(width, height)
            self.browser.dark(is_dark)
            self.browser.run(self.source)
            found = self.browser.ask("POST", "/execute/async", {"script": RUN, "args": []})
            counts = Counter({impact: 0 for impact in IMPACTS})
            for impact, rule, nodes in found:
                counts[impact] += 1
                if impact in ("serious", "critical"):
                    self.severe.append((name, mode, rule, nodes))
            self.totals[mode] += counts
            results.append(f"{mode} {'/'.join(str(counts[impact]) for impact in IMPACTS)}")
            rules = ", ".join(sorted(rule for _, rule, _ in found))
            if rules:
                results[-1] += f" ({rules})"
            needed = self.browser.run("return document.documentElement.scrollWidth")
            if needed > width:
                self.too_wide.append((name, mode, needed))
            slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "machines"
            self.browser.whole_picture(width, f"{self.pictures}/{slug[:60]}-{mode}.png")
        self.browser.size(1280, 800)
        self.browser.dark(False)
        print(f"   {name}: {'; '.join(results)}", flush=True)

    def summarize(self, good):
        for mode, counts in self.totals.items():
            text = ", ".join(f"{counts[impact]} {impact}" for impact in IMPACTS)
            print(f"   violations on {self.pages} pages, {mode}: {text}", flush=True)
        good(f"axe-core finds nothing serious or critical: {self.severe}", not self.severe)
        good(f"every page fits the window, also on a phone: {self.too_wide}", not self.too_wide)


def list_paths(rack):
    """Returns the path of each type of page. Creates the rollout that one of the pages shows."""
    one, failed, plan = machine_id(6), machine_id(5), f"/machines/{machine_id(7)}/reinstall?image=debian-13.1.20261101"
    start = (datetime.now(timezone.utc) + timedelta(days=30)).strftime("%Y-%m-%dT%H:%MZ")
    member = {"id": one, "imageid": "debian-13.1.20261101"}
    rollout = json.loads(rack.ask("POST", "/v1/rollouts", {"members": [member], "at_most": 1, "start": start}, rack.operator))["id"]
    return ["/", "/?q=storage-1&sort=-seen", f"/machines/{one}", f"/machines/{failed}", f"/machines/{machine_id(2)}", plan,
            f"/machines/{one}/actions", f"/machines/{machine_id(8)}/actions", f"/machines/{one}/file", "/plan",
            "/plan?image=debian-13.1.20261101&verdict=erases", "/orders", "/rollouts", f"/rollouts/{rollout}", "/audit", "/layouts",
            "/images", "/sizes", "/templates", "/volumes", "/machines/unknown"]


def check_pages(browser, rack, check):
    """Checks each type of page, and forms in their different states. Ends with a logout."""
    print("   (violations: critical/serious/moderate/minor)", flush=True)
    for path in list_paths(rack):
        browser.open(rack.url + path)
        check.check(path)
    rack.free_machine(12)
    form = f"{rack.url}/machines/{machine_id(12)}/allocate"
    until("the machine is free", lambda: browser.open(form) or "SSH public keys" in browser.text())
    check.check("the form of an allocation")
    browser.run("document.querySelector('#image').value = 'debian-13.1.20261101'; document.querySelector('#layout').value = 'storage'")
    browser.click("form.stack button")
    until("the plan", lambda: "Data lost" in browser.text())
    check.check("the plan of an allocation")
    browser.open(rack.url + "/")
    browser.click("#machines td.select input")
    check.check("a selection")
    browser.run("document.querySelector('#all').click()")
    browser.run("document.querySelector('#bulk select[name=image]').value = 'debian-13.1.20261101'")
    browser.click("#bulk button")
    until("the review", lambda: "the number of machines, to confirm" in browser.text())
    check.check("the review of several machines")
    for action in ("allocate", "lock"):
        browser.open(rack.url + "/")
        browser.run("document.querySelector('#all').click(); document.querySelector('#action').value = arguments[0]", action)
        browser.run("document.querySelector('#bulk select[name=image]').value = 'debian-13.1.20261101'")
        browser.click("#bulk button")
        until("the review", lambda: browser.run("return location.pathname") == "/bulk/review")
        check.check(f"the review of several machines: {action}")
    browser.open(f"{rack.url}/machines/{machine_id(6)}/file")
    browser.type("#text", "x: 1\n")
    browser.click("form.stack button")
    until("refused", lambda: "The text is not valid" in browser.text())
    check.check("an invalid file")
    browser.click("form[action='/logout'] button")
    until("out", lambda: "Use your own token" in browser.text())
    check.check("/login")


def check_new_machine(browser, rack, check, good, picture):
    """A machine without a file registers, appears in the list, and is added on the page."""
    Agent(rack, 13, is_free=True)
    until("the new machine is listed", lambda: browser.open(rack.url + "/?phase=new") or "1 of 13 machines" in browser.text())
    good("a machine without a file is in the list, with a form", "Add…" in browser.text())
    browser.size(1280, 360)
    picture("new")
    browser.size(1280, 800)
    browser.click("#machines td.phase a")
    until("the form", lambda: browser.run("return location.pathname").endswith("/add"))
    check.check("the form of a new machine")
    browser.open(f"{rack.url}/machines/{machine_id(13)}")
    check.check("a new machine")
    browser.click("a[href$='/add']")
    browser.type("#name", "storage-13")
    browser.click("form.stack button")
    until("the file is announced", lambda: "will describe this machine" in browser.text())
    browser.click("form.stack[method=post] button")
    path = f"/machines/{machine_id(13)}"
    until("added", lambda: browser.run("return location.pathname") == path)
    until("the name is shown", lambda: browser.open(rack.url + path) or "storage-13" in browser.text())
    good("the machine is added", os.path.exists(f"{rack.dir}/machines/storage-13.yaml"))
