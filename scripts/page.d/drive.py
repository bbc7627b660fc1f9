"""Drives the page like a user. Called by scripts/page: PROGRAM DIR AXE SCREENS; pictures go to DIR/pictures, and
pictures of all pages to SCREENS."""

import json
import os
import socket
import subprocess
import sys
import time

from accessibility import AccessibilityCheck, check_new_machine, check_pages
from browser import Browser, until
from input_and_display import use_keyboard, use_phone, use_without_script
from plans import allocate, plan_all_machines, select_on_a_phone
from rack import LAYOUT, Agent, Rack, inventory, machine_id
from rollout import roll_out
from speed import measure_list

HOSTILE = "\"'></pre><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
STAGES = [("image.reach", 0.4), ("storage.lock", 0.1), ("storage.release", 0.2), ("storage.wipe", 2.8), ("storage.partition", 1.1),
          ("storage.format", 3.6), ("storage.mount", 0.3), ("image.burn", 14.2), ("target.files", 0.2), ("target.install", 8.9),
          ("boot.kexec", 0.6)]
program, here, axe, screens = sys.argv[1:]
passed = 0


def free():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def say(text):
    print(f"\n== {text}", flush=True)


def good(what, is_so):
    global passed
    assert is_so, what
    passed += 1
    print(f"   {what}", flush=True)


def picture(name):
    os.makedirs(f"{here}/pictures", exist_ok=True)
    browser.picture(f"{here}/pictures/{name}.png")


def log_in(rack):
    browser.open(rack.url + "/")
    browser.type("#token", rack.operator)
    browser.click("button")
    until("the list is there", lambda: "machines" in browser.text())


def cell(number, selector):
    return browser.run("const row = document.querySelector(`tr[data-id='${arguments[0]}']`);"
                       "return row && row.querySelector(arguments[1]).textContent", machine_id(number), selector)


def printed(number):
    """Returns the plan of an installation, as the agent prints it."""
    for name, text in (("layout.yaml", LAYOUT), ("inventory.json", json.dumps(inventory(number)))):
        with open(f"{here}/{name}", "w") as file:
            file.write(text)
    command = [program, "plan", "--layout", f"{here}/layout.yaml", "--inventory", f"{here}/inventory.json"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip()


def run_stages(agent, stages, speed):
    """Simulates stages, each of which takes `speed` times its duration."""
    for stage, seconds in stages:
        agent.event("Installing", "begins", step=stage)
        time.sleep(seconds * speed)
        agent.event("Installing", f"{stage} is done", step=stage, seconds=seconds * speed)
        agent.log(f"Installing          {stage}\nInstalling          {stage} took {seconds} s\n")


def install(number, speed=0.001):
    """Simulates a complete installation and its report. Its stages take `speed` times the time in the report."""
    agent = Agent(rack, number)
    agent.begin()
    agent.log("drophammer: hardware is up after 9.31 s: 61 modules; disks: sda sdb sdc; network cards: eth0\n"
              "drophammer: eth0: 10.0.0.117/24, router 10.0.0.1\nPreparing           drophammer 0.1.0\n"
              "Waiting             for an allocation\nInstalling          debian-12.0.20261101 as storage-6\n\n" + printed(number) + "\n")
    run_stages(agent, STAGES, speed)
    timings = [{"step": stage, "seconds": seconds} for stage, seconds in STAGES]
    same = {"guid": "11111111-2222-4333-8444-555555555555", "partition 1": "2048-7812939775 varlib"}
    agent.report(True, "debian-12.0.20261101 is installed", timings=timings, plan=printed(number),
                 kept=[{"object": "disk /dev/sdb", "before": same, "after": same}],
                 erased=[{"device": "/dev/sda", "serial": f"S45NNE0M{number:05d}", "method": "discard",
                          "proof": "both ends read back as zero", "seconds": 2.8}],
                 burn={"bytes": 1_212_000_000, "seconds": 14.2, "shares": [{"stage": "decode", "percent": 71},
                                                                          {"stage": "network", "percent": 22}]})
    return agent


def logging_in():
    say("log in")
    browser.open(rack.url + "/machines/" + machine_id(1))
    good("without a login, the token is requested", browser.run("return location.pathname") == "/login")
    browser.type("#token", "wrong")
    browser.click("button")
    until("refused", lambda: "wrong token" in browser.text())
    good("a wrong token is refused", browser.run("return document.cookie") == "")
    log_in(rack)
    good("the right token opens the list", "12 machines" in browser.text())
    good("no script reads the cookie", browser.run("return document.cookie") == "")


def watching():
    say("watch installations move")
    install(6, 0.25)
    install(7)
    install(8)
    agents = [Agent(rack, number) for number in (1, 2, 3)]
    for agent in agents:
        for phase, message in (("Preparing", "drophammer 0.1.0"), ("Registering", agent.id), ("Waiting", "for an allocation")):
            agent.event(phase, message)
        agent.event("Installing", "debian-12.0.20261101 as storage")
        agent.begin()
        run_stages(agent, STAGES[:7], 0.25 if agent is agents[1] else 0.001)
        agent.event("Installing", "begins", step="image.burn")
    Agent(rack, 4).event("Preparing", "reading the disks")
    failed = Agent(rack, 5)
    run_stages(failed, STAGES[:5], 0.001)
    failed.event("Installing", "begins", step="storage.format")
    failed.event("Installing", "failed after 0.3 s", step="storage.format", seconds=0.3)
    failed.event("Crashed", "storage.format: mkfs.ext4 /dev/sda2: Input/output error")
    until("live", lambda: browser.run("return document.querySelector('#live').textContent") == "live")
    until("rows that have changed are fetched", lambda: cell(6, ".word") == "installed" and cell(5, ".word") == "failed")
    good("the reason of a failure is in its row", cell(5, ".reason") == "storage.format: mkfs.ext4 /dev/sda2: Input/output error")
    browser.run("window.kept = 1")
    seen = []
    for percent in range(7, 100, 10):
        for index, agent in enumerate(agents):
            agent.burn(max(percent - 23 * index, 1))
        until(f"{percent} %", lambda: cell(1, ".percent") == f"{percent} %")
        seen.append(browser.run("return document.querySelector(`tr[data-id='${arguments[0]}'] progress`).value", machine_id(1)))
        if percent == 77:
            until("phases are counted", lambda: "3" in browser.run("return document.querySelector('#phases .busy').textContent"))
            picture("machines")
    good(f"the bar moves: {seen}", seen == list(range(7, 100, 10)))
    good("without loading the page again", browser.run("return window.kept") == 1)
    good("rate and remaining time are shown", cell(1, ".rate") == "114 MB/s" and cell(2, ".left") != "")
    agents[0].report(True, "installed")
    until("the end of the installation is shown", lambda: cell(1, ".word") == "installed")
    good("the end is shown without loading the page again", browser.run("return window.kept") == 1)
    browser.open(f"{rack.url}/machines/{machine_id(2)}")
    until("live", lambda: browser.run("return document.querySelector('#live').textContent") == "live")
    agents[1].burn(88)
    until("the machine's page moves too", lambda: "88 %" in browser.text())
    good("the machine's page moves too", True)
    until("the timeline shows the running stage", lambda: browser.run("return document.querySelector('table.timeline tr.busy')"))
    browser.run("scrollTo(0, 0)")
    browser.size(1280, 980)
    picture("timeline")
    browser.size(1280, 800)
    agents[1].log("Installing          image.burn: <b>one of two mirrors</b> is away\n")
    until("the log grows", lambda: "image.burn: <b>one of two mirrors</b> is away" in browser.text())
    good("the log grows without loading the page again", True)


def machine():
    say("a machine")
    browser.open(f"{rack.url}/machines/{machine_id(6)}")
    text = browser.text()
    for words in ("PowerEdge R640", "SAMSUNG MZ7LH480", "Duration by step", "Proofs that preserved objects are unchanged", "same"):
        good(f"it says: {words}", words in text)
    shown = browser.run("return [...document.querySelectorAll('pre')].map((one) => one.textContent)")
    good("the plan is shown exactly as it was printed", printed(6) in shown)
    good("the log contains the console output", any(one.startswith("── ") and "hardware is up after 9.31 s" in one and
         one.rstrip().endswith("boot.kexec took 0.6 s") for one in shown))
    good("the log is scrolled to its end", browser.run("const log = document.querySelector('pre.log');"
                                          "return log.scrollHeight > log.clientHeight && log.scrollTop + log.clientHeight >= log.scrollHeight - 2"))
    good("the disks are drawn", browser.run("return document.querySelectorAll('svg.disk').length") == 3)
    browser.size(1280, 1500)
    picture("machine")
    browser.size(1280, 560)
    browser.run("[...document.querySelectorAll('h2')].find((one) => one.textContent === 'Log').scrollIntoView()")
    picture("log")
    browser.size(1280, 800)
    for path in ("/layouts", "/images", "/orders"):
        browser.open(rack.url + path)
    browser.open(rack.url + "/layouts")
    loaded = "return [...document.images].length && [...document.images].every((one) => one.complete && one.naturalWidth > 100)"
    until("the layout's picture is loaded", lambda: browser.run(loaded))
    good("layouts are drawn", True)


def reinstalling():
    say("order a reinstall")
    body = {"id": machine_id(7), "imageid": "debian-12.0.20261101"}
    rack.ask("POST", f"/v1/machine/{machine_id(7)}/reinstall", body, rack.operator)
    Agent(rack, 7, installed=True)
    browser.open(f"{rack.url}/machines/{machine_id(7)}/reinstall")
    browser.run("document.querySelector('#image').value = 'debian-13.1.20261101'")
    browser.click("form.stack button")
    until("the plan", lambda: "Data lost" in browser.text())
    text = browser.text()
    good("the plan lists the data that would be lost", "S45NNE0M00007" in text.split("Preserved")[0].split("Data lost")[1])
    good("and what stays", "9150A000007" in text.split("Preserved")[1] and "ZA1B00007" in text.split("Preserved")[1])
    good("the whole plan is shown", "point of no return" in text)
    button = "return document.querySelector('button.danger').disabled"
    good("the button is disabled", browser.run(button))
    browser.type("#name", "storage-")
    good("with half a name too", browser.run(button))
    browser.type("#name", "7")
    good("the machine's name enables the button", not browser.run(button))
    browser.size(1280, 1750)
    browser.run("scrollTo(0, 0)")
    picture("plan")
    browser.size(1280, 800)
    browser.click("button.danger")
    until("ordered", lambda: "Reinstall ordered" in browser.text())
    good("the order is shown", "image debian-13.1.20261101" in browser.text())
    browser.open(f"{rack.url}/orders")
    good("the order is in the list of orders", "1 open order" in browser.text())


def refusals():
    say("refusals")
    rack.machine(8, 'locked: "a customer\'s disks are inside"\n')
    path = f"{rack.url}/machines/{machine_id(8)}/reinstall?image=debian-13.1.20261101"

    def refused():
        browser.open(path)
        return "is locked" in browser.text()
    until("a locked machine", refused)
    text = browser.text()
    good("a locked machine is refused with a reason", "Refused: " in text and "a customer's disks are inside" in text)
    good("a refusal has no button", not browser.run("return document.querySelector('button.danger')"))
    browser.open(f"{rack.url}/machines/{machine_id(4)}/reinstall?image=debian-13.1.20261101")
    good("a machine that is not installed is refused", "is not installed yet" in browser.text())


def sorting_and_filtering():
    say("sort, filter, select")
    browser.open(rack.url + "/")
    names = "return [...document.querySelectorAll('#machines tr:not([hidden]) td.name')].map((one) => one.textContent)"
    good("names are in natural order", browser.run(names)[:3] == ["storage-1", "storage-2", "storage-3"])
    good("failures are counted in the title", browser.run("return document.title") == "(1) Machines · drophammer")
    browser.click("thead th:nth-child(3) a")
    until("sorted", lambda: "sort=phase" in browser.run("return location.search"))
    good("failures are first in the order of phases", browser.run(names)[0] == "storage-5")
    browser.type("#filter", "S45NNE0M00006 INSTALLED")
    good("the filter finds serial numbers", browser.run(names) == ["storage-6"] and "1 of 12 machines" in browser.text())
    until("the URL contains the filter", lambda: "q=S45NNE0M00006" in browser.run("return location.search"))
    good("the URL contains the sort order", "sort=phase" in browser.run("return location.search"))
    browser.open(browser.run("return location.href"))
    good("a bookmark shows the same machines", browser.run(names) == ["storage-6"])
    until("all rows are loaded", lambda: browser.run("return document.querySelectorAll('#machines tr').length") == 12)
    good("the filter is preserved", browser.run(names) == ["storage-6"])
    browser.run("const all = document.querySelector('#all'); all.click()")
    good("the checkbox selects the machines in the list", "1 machine selected" in browser.text())
    browser.run("document.querySelector('#filter').value = ''; document.querySelector('#filter').dispatchEvent(new Event('input'))")
    good("a selection survives another filter", "1 machine selected" in browser.text() and len(browser.run(names)) == 12)
    body = {"id": machine_id(6), "imageid": "debian-12.0.20261101"}
    rack.ask("POST", f"/v1/machine/{machine_id(6)}/reinstall", body, rack.operator)
    Agent(rack, 6, installed=True)
    until("the row is fetched again", lambda: browser.run("return document.querySelector(`input[value='${arguments[0]}']`).checked", machine_id(6))
          and cell(6, ".word") != "installed")
    browser.run("document.querySelector(`input[value='${arguments[0]}']`).click()", machine_id(4))
    good("two machines are selected", "2 machines selected" in browser.text())
    browser.run("document.querySelector('#bulk select[name=image]').value = 'debian-13.1.20261101'")
    browser.click("#bulk button")
    until("the review", lambda: "Type 1, the number of machines" in browser.text())
    text = browser.text()
    good("the review lists the data that would be lost", "S45NNE0M00006" in text and "Data lost" in text)
    good("the review lists refusals with their reasons", "skipped: 1" in text and "is not installed yet" in text)
    button = "return document.querySelector('button.danger').disabled"
    good("the button is disabled", browser.run(button))
    picture("bulk")
    browser.type("#count", "1")
    good("the number of machines enables the button", not browser.run(button))
    browser.click("button.danger")
    until("the results", lambda: "1 of 1 machine changed" in browser.text())
    rack.ask("DELETE", f"/v1/machine/{machine_id(6)}/reinstall", token=rack.operator)


def editing():
    say("edit a machine file")
    browser.open(f"{rack.url}/machines/{machine_id(10)}/file")
    browser.type("#text", "sizes: x\n")
    browser.click("form.stack button")
    until("refused", lambda: "The text is not valid; nothing was written" in browser.text())
    good("an invalid text is refused with its position", "13:1" in browser.text() or "unknown field" in browser.text())
    browser.open(f"{rack.url}/machines/{machine_id(10)}/file")
    browser.type("#text", "# a comment\n")
    browser.click("form.stack button")
    until("checked", lambda: "The text is valid" in browser.text())
    browser.type("#name", "storage-10")
    browser.click("button.danger")
    until("written", lambda: browser.run("return location.pathname") == f"/machines/{machine_id(10)}")
    with open(f"{rack.dir}/machines/storage-10.yaml") as file:
        good("a valid text is written", file.read().endswith("# a comment\n"))


def planning():
    say("plan all machines")
    plan_all_machines(browser, rack, good, picture)
    say("allocate a free machine")
    allocate(browser, rack, good)
    say("select machines on a phone")
    select_on_a_phone(browser, rack, good, picture)


def accessible():
    say("axe-core")
    check_pages(browser, rack, check)
    log_in(rack)


def unreadable():
    say("an unreadable file, a missing folder")
    browser.open(rack.url + "/")
    until("live", lambda: browser.run("return document.querySelector('#live').textContent") == "live")
    os.rename(f"{rack.dir}/machines", f"{rack.dir}/away")
    shown = "const red = document.querySelector('#problems'); return red.hidden ? '' : red.innerText"
    until("the page says so", lambda: "its last good files stay in force" in browser.run(shown))
    good("a missing folder is reported in red, without loading the page again", True)
    good("the last valid list is still shown", browser.run("return document.querySelectorAll('#machines tr').length") == 12)
    os.rename(f"{rack.dir}/away", f"{rack.dir}/machines")
    until("the report disappears", lambda: browser.run(shown) == "")
    rack.write("images/broken.yaml", "id: [\n")
    until("the page says so", lambda: "broken.yaml" in browser.run(shown))
    good("an unreadable file is reported too", True)
    os.remove(f"{rack.dir}/images/broken.yaml")
    until("the report disappears", lambda: browser.run(shown) == "")


def hostile():
    say("a machine that sends markup")

    def change(has):
        has["system"]["product"] = has["cpus"][0]["model"] = HOSTILE
        for one in has["disks"]:
            one["model"] = one["serial"] = HOSTILE
    browser.open(f"{rack.url}/")
    agent = Agent(rack, 9, change=change)
    agent.event("Installing", HOSTILE, step=HOSTILE)
    until("it is shown as text", lambda: "<script>window.hacked" in (cell(9, ".what") or ""))
    for path in ("/", f"/machines/{machine_id(9)}"):
        browser.open(rack.url + path)
        time.sleep(0.5)
        good(f"{path} does not execute markup", browser.run("return window.hacked === undefined && !document.querySelector('img[src=x]')"))
    good("markup is shown as text", "onerror=" in browser.text())


def input_and_display():
    say("keyboard")
    use_keyboard(browser, rack, good)
    say("phone, dark colors")
    use_phone(browser, rack, good, picture)
    say("no JavaScript")
    use_without_script(browser, rack, good)


def adding():
    say("a new machine")
    log_in(rack)
    check_new_machine(browser, rack, check, good, picture)
    say("accessibility of all pages")
    check.summarize(good)
    browser.click("form[action='/logout'] button")


def rolling_out():
    say("a rollout")
    roll_out(browser, Rack(program, f"{here}/rollout", 12), log_in, good, picture)


def many():
    say("2,000 machines")
    many = Rack(program, f"{here}/many", 2000)
    try:
        log_in(many)
        measure_list(browser, many, good)
    finally:
        many.end()


browser = Browser(free())
check = AccessibilityCheck(browser, axe, screens)
rack = Rack(program, f"{here}/rack", 12)
try:
    for part in (logging_in, watching, machine, reinstalling, refusals, sorting_and_filtering, editing, planning, accessible, unreadable, hostile,
                 input_and_display, adding, rolling_out, many):
        part()
    # Refusals are responses with an error status, which the browser logs.
    complaints = [line for line in browser.complaints() if "the server responded with a status of 4" not in line]
    good(f"the browser reports no errors: {complaints}", not complaints)
except Exception:
    browser.picture(f"{screens}/failed.png")
    print(f"{browser.text()}\n{browser.complaints()}")
    raise
finally:
    browser.end()
    rack.end()
print(f"\nThe page: {passed} of {passed} good.")
