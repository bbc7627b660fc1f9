"""Use of the page with the keyboard alone, without JavaScript, on a phone, and in dark colors."""

from browser import until
from rack import machine_id

TAB, SHIFT_TAB, ENTER, SPACE = "\ue004", "\ue008\ue004", "\ue007", " "
IMAGE = "debian-13.1.20261101"
ROWS = "return [...document.querySelectorAll('#machines tr')].filter((row) => !row.hidden).length"
FOCUSED = "return document.activeElement"
# Elements that the Tab key must reach.
REACHABLE = """return [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, pre[tabindex]")]
    .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility()).length"""
# Records the elements that get the focus, and whether the focus is visible.
RECORD = """window.reached = new Set(); window.unmarked = [];
    document.addEventListener("focusin", (event) => {
        window.reached.add(event.target);
        const style = getComputedStyle(event.target);
        if (style.outlineStyle === "none" && event.target.id !== "main") window.unmarked.push(event.target.outerHTML.slice(0, 80));
    });"""


def use_keyboard(browser, rack, good):
    browser.open(rack.url + "/")
    browser.keys(TAB)
    good("the first Tab selects the link to the content", browser.run(FOCUSED + ".textContent") == "Skip to content")
    browser.keys(ENTER)
    good("the link moves the focus behind the navigation", browser.run(FOCUSED + ".id") == "main")
    for path in ("/", f"/machines/{machine_id(6)}", f"/machines/{machine_id(7)}/reinstall?image={IMAGE}", "/plan"):
        browser.open(rack.url + path)
        expected = browser.run(REACHABLE)
        browser.run(RECORD)
        browser.keys(TAB * (expected + 15))
        reached, unmarked = browser.run("return [window.reached.size, window.unmarked]")
        good(f"{path.split('?')[0]}: Tab reaches all {expected} elements, and the focus is visible {unmarked or ''}",
             reached >= expected and not unmarked)
    browser.open(rack.url + "/")
    browser.keys("jj")
    good("j goes from machine to machine", browser.run(FOCUSED + ".textContent").startswith("storage-"))
    browser.chord(SHIFT_TAB)
    browser.keys(SPACE)
    good("Space selects the machine", "1 machine selected" in browser.text())
    browser.keys("/")
    good("/ goes to the filter", browser.run(FOCUSED + ".id") == "filter")
    browser.keys("storage-12")
    good("the filter is applied during typing", browser.run(ROWS) == 1)
    browser.keys(ENTER)
    until("the list is loaded with the filter", lambda: "q=storage-12" in browser.run("return location.search"))
    browser.open(f"{rack.url}/machines/{machine_id(4)}/file")
    browser.run("document.querySelector('#text').focus()")
    browser.keys(TAB + ENTER)
    until("the file is checked with the keyboard", lambda: "The text is valid" in browser.text())
    good("a form is sent with the keyboard", True)


def use_phone(browser, rack, good, picture):
    browser.size(390, 844)
    for path in ("/", f"/machines/{machine_id(6)}", f"/machines/{machine_id(7)}/reinstall?image={IMAGE}", "/orders", "/images", "/layouts"):
        browser.open(rack.url + path)
        width = browser.run("return document.documentElement.scrollWidth")
        good(f"{path.split('?')[0]} fits a phone: {width} of 390", width <= 390)
    browser.open(rack.url + "/")
    browser.dark(True)
    back = browser.run("return getComputedStyle(document.body).backgroundColor")
    picture("phone")
    browser.dark(False)
    good("dark and light mode have different colors", back != browser.run("return getComputedStyle(document.body).backgroundColor"))
    browser.size(1280, 800)


def use_without_script(browser, rack, good):
    browser.script(False)
    browser.open(f"{rack.url}/?q=storage-12")
    good("without JavaScript the filter works", "storage-12" in browser.text() and "storage-11" not in browser.text())
    browser.open(f"{rack.url}/")
    browser.click("thead th:nth-child(3) a")
    until("sorted", lambda: "sort=phase" in browser.run("return location.search"))
    good("the list is sorted", browser.run("return document.querySelector('#machines td.name').textContent") == "storage-5")
    browser.click("#phases a.bad")
    until("one phase", lambda: "phase=failed" in browser.run("return location.search"))
    good("the list is limited to a phase", browser.run(ROWS) == 1)
    browser.open(f"{rack.url}/")
    for number in (1, 4, 6):
        browser.click(f"input[value='{machine_id(number)}']")
    browser.click(f"#bulk select[name=image] option[value='{IMAGE}']")
    browser.click("#bulk button")
    until("the review", lambda: "the number of machines, to confirm" in browser.text())
    browser.type("#count", "9")
    browser.click("button.danger")
    until("refused", lambda: "nothing was changed" in browser.text())
    good("a wrong number of machines is refused", True)
    browser.open(f"{rack.url}/")
    browser.click(f"input[value='{machine_id(4)}']")
    browser.click("#action option[value=lock]")
    browser.click("#bulk button")
    until("the review", lambda: "Lock 1 machine" in browser.text())
    browser.type("#reason", "waits for a disk")
    browser.type("#count", "1")
    browser.click("button.danger")
    until("locked", lambda: "Locked: 1" in browser.text())
    good("machines are locked", True)
    browser.open(f"{rack.url}/")
    browser.click(f"input[value='{machine_id(4)}']")
    browser.click("#action option[value=unlock]")
    browser.click("#bulk button")
    until("the review", lambda: "waits for a disk" in browser.text())
    browser.type("#count", "1")
    browser.click("button.danger")
    until("unlocked", lambda: "Unlocked: 1" in browser.text())
    good("machines are unlocked", True)
    browser.open(f"{rack.url}/machines/{machine_id(7)}")
    browser.click("form[action$=cancel] button")
    until("taken back", lambda: "Cancel the order" not in browser.text())
    good("an order can be canceled", "reinstall ordered" not in browser.text())
    browser.click("form[action='/logout'] button")
    until("out", lambda: "Use your own token" in browser.text())
    good("the logout works", True)
    browser.script(True)
