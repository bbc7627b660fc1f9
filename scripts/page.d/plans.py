"""Pages that plan: the plans of all machines, the allocation of a free machine, and actions on several machines on a phone."""

from browser import until
from rack import Agent, machine_id

FREE = 12
ROWS = "return document.querySelectorAll('table.plans tbody tr').length"
WIDTH = "return document.documentElement.scrollWidth"
BUTTON = "return document.querySelector('button.danger').disabled"


def plan_all_machines(browser, rack, good, picture):
    browser.open(rack.url + "/plan")
    until("all machines are planned", lambda: not browser.run("return document.querySelector('[data-unfinished]')"))
    good("every machine has a row", browser.run(ROWS) == 12)
    browser.run("document.querySelector('select[name=image]').value = 'debian-13.1.20261101'")
    browser.click("form.choices button")
    until("the image is planned", lambda: "debian-13.1.20261101" in browser.run("return location.search")
          and not browser.run("return document.querySelector('[data-unfinished]')"))
    text = browser.text()
    good("the total of lost data is shown", "Data lost: 480 GB" in text or "TB on" in text or "GB on" in text)
    good("wiped and preserved disks are listed", "wipes S45NNE0M00006" in text and "keeps 9150A000006" in text)
    good("the reason of a refusal is shown", "a customer's disks are inside" in text)
    good("a plan from an outdated inventory is marked", "outdated" in text)
    picture("plans")
    browser.click("#phases a.erases")
    until("the list is filtered", lambda: "verdict=erases" in browser.run("return location.search"))
    good("a verdict filters the list", 0 < browser.run(ROWS) < 12 and "is locked" not in browser.text())
    browser.size(390, 844)
    good(f"it fits a phone: {browser.run(WIDTH)} of 390", browser.run(WIDTH) <= 390)
    browser.size(1280, 800)
    browser.click("a[aria-label='Plan of storage-6']")
    until("the plan of a machine", lambda: "point of no return" in browser.text())
    good("a row leads to the whole plan", browser.run("return location.pathname") == f"/machines/{machine_id(6)}/reinstall")


def allocate(browser, rack, good):
    rack.free_machine(FREE)
    path = f"{rack.url}/machines/{machine_id(FREE)}"

    def free():
        browser.open(path)
        return "Allocate…" in browser.text()
    until("the machine is free", free)
    Agent(rack, FREE, is_free=True)
    browser.click("a[href$='/allocate']")
    until("the form", lambda: "SSH public keys" in browser.text())
    browser.run("document.querySelector('#image').value = 'debian-13.1.20261101'; document.querySelector('#layout').value = 'storage'")
    browser.type("#user_data", "#cloud-config\n")
    browser.click("form.stack button")
    until("the plan", lambda: "Data lost" in browser.text())
    good("the plan lists the data that would be lost", f"S45NNE0M{FREE:05d}" in browser.text().split("Preserved")[0].split("Data lost")[1])
    good("the button is disabled", browser.run(BUTTON))
    browser.type("#name", f"storage-{FREE}")
    good("the machine's name enables the button", not browser.run(BUTTON))
    browser.click("button.danger")
    until("allocated", lambda: browser.run("return location.pathname") == f"/machines/{machine_id(FREE)}")
    with open(f"{rack.dir}/machines/storage-{FREE}.yaml") as file:
        text = file.read()
    good("the file has the allocation, and its comment", text.startswith("# spare\n") and "cloud-config" in text)


def select_on_a_phone(browser, rack, good, picture):
    browser.size(390, 844)
    browser.open(rack.url + "/")
    shown = "const box = document.querySelector('#bulk').getBoundingClientRect(); return box.height > 0 && box.bottom <= innerHeight"
    good("without a selection, the actions are hidden", not browser.run(shown))
    for number in (6, 4):
        browser.run("document.querySelector(`input[value='${arguments[0]}']`).scrollIntoView({block: 'center'})", machine_id(number))
        browser.click(f"input[value='{machine_id(number)}']")
    good("the actions are at the bottom of the screen", browser.run(shown) and "2 machines selected" in browser.text())
    good(f"the list fits: {browser.run(WIDTH)} of 390", browser.run(WIDTH) <= 390)
    browser.run("document.querySelector('#bulk select[name=image]').value = 'debian-13.1.20261101'")
    picture("phone-selection")
    browser.click("#bulk button")
    until("the review", lambda: "Type 1, the number of machines" in browser.text())
    good(f"the review fits: {browser.run(WIDTH)} of 390", browser.run(WIDTH) <= 390)
    good("the review lists the data that would be lost", "S45NNE0M00006" in browser.text())
    browser.size(1280, 800)
