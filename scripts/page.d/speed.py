"""Measures how fast a long list of machines is shown, scrolled and filtered."""

import time

from browser import until

# Scrolls to the end of the list, and returns the duration of each frame.
SCROLLING = """
    const done = arguments[0], frames = [], end = document.documentElement.scrollHeight;
    let at = 0, before = performance.now();
    const step = (now) => {
      frames.push(now - before); before = now; at += 600; scrollTo(0, at);
      if (at < document.documentElement.scrollHeight) requestAnimationFrame(step); else done(frames);
    };
    requestAnimationFrame(step);"""
# Replaces the text of the filter, and waits until the page is painted: the second frame starts after the first was painted.
TYPING = """
    const filter = document.querySelector("#filter"), done = arguments[1];
    const before = performance.now();
    filter.value = arguments[0];
    filter.dispatchEvent(new Event("input"));
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(performance.now() - before), 0)));"""
# Maximum time for a frame of scrolling, and for the effect of a keystroke in the filter, in milliseconds.
LIMIT = 100


def busy(browser):
    """Returns the CPU time of the page's main thread in seconds, which does not depend on the load of this computer."""
    return next(one["value"] for one in browser.cdp("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration")


def measure_list(browser, rack, good):
    began = time.monotonic()
    browser.open(rack.url + "/")
    took = time.monotonic() - began
    good("all machines are in the list", browser.run("return document.querySelectorAll('#machines tr').length") == 2000)
    print(f"   loaded in {took:.2f} s, {browser.run('return document.documentElement.outerHTML.length') >> 10} KiB")
    browser.ask("POST", "/timeouts", {"script": 120000})
    browser.cdp("Performance.enable", timeDomain="threadTicks")
    before = busy(browser)
    frames = sorted(browser.ask("POST", "/execute/async", {"script": SCROLLING, "args": []}))
    middle, late = frames[len(frames) // 2], frames[len(frames) * 99 // 100]
    print(f"   scrolled in {len(frames)} frames: half of them within {middle:.0f} ms, 99 of 100 within {late:.0f} ms")
    per_frame = 1000 * (busy(browser) - before) / len(frames)
    print(f"   which took {per_frame:.0f} ms of CPU time per frame")
    good(f"a frame is scrolled within {LIMIT} ms of CPU time", per_frame <= LIMIT)
    strokes, waits = [], []
    for text in ("s", "st", "storage-1", "storage-19", "storage-1999", "", "52:54:00:00:07", "nothing", ""):
        before = busy(browser)
        waits.append(browser.ask("POST", "/execute/async", {"script": TYPING, "args": [text]}))
        strokes.append(1000 * (busy(browser) - before))
    print(f"   filtered with {len(strokes)} texts: {sorted(strokes)[len(strokes) // 2]:.0f} ms of CPU time each, at most {max(strokes):.0f} ms")
    print(f"   until the page was painted: {sorted(waits)[len(waits) // 2]:.0f} ms each, at most {max(waits):.0f} ms")
    good(f"the list is filtered within {LIMIT} ms of CPU time", max(strokes) <= LIMIT)
    good("the whole list is back", browser.run("return document.querySelector('#count').textContent") == "2000 machines")
    browser.run("scrollTo(0, document.documentElement.scrollHeight)")
    last = "const all = document.querySelectorAll('#machines tr'); const box = all[all.length - 1].getBoundingClientRect();" \
           "return box.top < innerHeight && box.height > 10"
    good("the last one is reached", browser.run(last))
    began = time.monotonic()
    browser.open(rack.url + "/plan")
    until("all machines are planned", lambda: not browser.run("return document.querySelector('[data-unfinished]')"))
    print(f"   planned in {time.monotonic() - began:.2f} s")
    good("the plans are on pages of 100 machines", browser.run("return document.querySelectorAll('table.plans tbody tr').length") == 100
         and "Page 1 of 20" in browser.text())
