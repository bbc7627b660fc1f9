"""A rollout: installed machines are reinstalled in waves."""

import json

from browser import until
from rack import Agent, machine_id

IMAGE = "debian-13.1.20261101"
LAYOUT = "storage"


def report_success(agent, number):
    order = (agent.told.get("order") or {}).get("id", "")
    marker = {"machine": machine_id(number), "allocation": agent.told["allocationuuid"], "order": order, "image": IMAGE, "layout": LAYOUT}
    agent.report(True, f"{IMAGE} is installed", marker=marker)


def roll_out(browser, rack, log_in, good, picture):
    try:
        log_in(rack)
        order_and_watch(browser, rack, good, picture)
        browser.click("form[action='/logout'] button")
    finally:
        rack.end()


def order_and_watch(browser, rack, good, picture):
    for number in range(1, 13):
        agent = Agent(rack, number)
        agent.begin()
        agent.report(True, "debian-12.0.20261101 is installed")
    members = [{"id": machine_id(number), "imageid": IMAGE} for number in range(1, 13)]
    made = json.loads(rack.ask("POST", "/v1/rollouts", {"members": members, "at_most": 3, "stop_after": 2}, rack.operator))

    def states():
        return [one["state"] for one in json.loads(rack.ask("GET", f"/v1/rollouts/{made['id']}", token=rack.operator))["members"]]
    for number in range(1, 6):
        until(f"the reinstall of storage-{number} is ordered", lambda: states()[number - 1] == "ordered")
        agent = Agent(rack, number, installed=True)
        if number == 3:
            message = "/dev/sda does not exist: its disks are /dev/nvme0n1 (3.84 TB)"
            agent.report(False, message, untouched=True, step="plan")
            continue
        agent.begin()
        if number < 5:
            report_success(agent, number)
        else:
            agent.event("Installing", "begins", step="image.burn")
    expected = ["done", "done", "failed", "done", "installing", "ordered", "ordered"] + ["waiting"] * 5
    until("the next members are ordered", lambda: states() == expected)
    browser.open(rack.url + "/rollouts")
    text = browser.text()
    good("the list shows the progress", "3 of 12 done, 5 waiting, 2 ordered, 1 installing, 1 failed" in text)
    browser.open(f"{rack.url}/rollouts/{made['id']}")
    text = browser.text()
    good("a rollout shows its limits", "at most 3" in text and "2 failures" in text)
    good("the reason of a failure is shown", "its disks are /dev/nvme0n1" in text)
    picture("rollout")
    browser.click("button[aria-label^=Halt]")
    until("halted", lambda: "halted by operator" in browser.text())
    good("it can be halted", True)
