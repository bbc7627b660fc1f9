"""Checks the pages with axe-core (https://github.com/dequelabs/axe-core)."""

import json
from datetime import datetime, timedelta, timezone

from browser import until
from rack import machine_id


def find_violations(browser, rack, axe):
    """Checks each type of page in light and dark colours. Returns the serious and critical findings."""
    with open(axe) as file:
        source = file.read()
    run = """const done = arguments[0];
        axe.run(document).then((found) => done(found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) =>
            node.target.join(" ") + ": " + (node.any.concat(node.all, node.none)[0] || {}).message)])));"""
    one, failed, plan = machine_id(6), machine_id(5), f"/machines/{machine_id(7)}/reinstall?image=debian-13.1.20261101"
    start = (datetime.now(timezone.utc) + timedelta(days=30)).strftime("%Y-%m-%dT%H:%MZ")
    member = {"id": one, "imageid": "debian-13.1.20261101"}
    rollout = json.loads(rack.ask("POST", "/v1/rollouts", {"members": [member], "at_most": 1, "start": start}, rack.operator))["id"]
    paths = ["/", "/?q=storage-1&sort=-seen", f"/machines/{one}", f"/machines/{failed}", f"/machines/{machine_id(2)}", plan,
             f"/machines/{one}/actions", f"/machines/{machine_id(8)}/actions", f"/machines/{one}/file", "/plan", "/plan?image=debian-13.1.20261101&verdict=erases", "/orders", "/rollouts", f"/rollouts/{rollout}", "/audit", "/layouts", "/images", "/sizes", "/templates", "/volumes",
             "/machines/unknown"]
    minor, all_severe = {}, []
    browser.ask("POST", "/timeouts", {"script": 120000})

    def check(name):
        for is_dark in (False, True):
            browser.dark(is_dark)
            browser.run(source)
            found = browser.ask("POST", "/execute/async", {"script": run, "args": []})
            severe = [one for one in found if one[0] in ("serious", "critical")]
            for impact, rule, nodes in found:
                minor[rule] = impact
            print(f"   {name}, {'dark' if is_dark else 'light'}: {len(severe)} serious or critical {severe or ''}", flush=True)
            all_severe.extend(severe)
        browser.dark(False)
    for path in paths:
        browser.open(rack.url + path)
        check(path)
    rack.free_machine(12)
    form = f"{rack.url}/machines/{machine_id(12)}/allocate"
    until("the machine is free", lambda: browser.open(form) or "SSH public keys" in browser.text())
    browser.run("document.querySelector('#image').value = 'debian-13.1.20261101'; document.querySelector('#layout').value = 'storage'")
    browser.click("form.stack button")
    until("the plan", lambda: "Data lost" in browser.text())
    check("the plan of an allocation")
    browser.size(390, 844)
    browser.open(rack.url + "/")
    browser.click("#machines td.select input")
    check("a selection on a phone")
    browser.size(1280, 800)
    browser.open(f"{rack.url}/machines/{one}/file")
    browser.type("#text", "x: 1\n")
    browser.click("form.stack button")
    until("refused", lambda: "Not valid" in browser.text())
    check("an invalid file")
    browser.click("form[action='/logout'] button")
    until("out", lambda: "Use your own token" in browser.text())
    check("/login")
    print(f"   all findings: {minor or 'none'}", flush=True)
    return all_severe
