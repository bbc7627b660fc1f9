// Live updates of the pages. Without this script, pages show the state at the time when they were loaded, and all forms work.
"use strict";
(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const body = find("#machines");
  const main = find("#main");
  const machine = find("[data-machine]");
  const live = find("#live");

  // Coalesces calls within the given time.
  const seldom = (milliseconds, work) => {
    let waits = false;
    return () => {
      if (waits) return;
      waits = true;
      setTimeout(() => { waits = false; work(); }, milliseconds);
    };
  };

  // Sends one request at a time, however often the state changes. After a failure, it pauses, and doubles the pause up to a minute. `work`
  // returns null on failure.
  const SHORTEST = 2000;
  const LONGEST = 60000;
  const oneByOne = (work) => {
    const waiting = new Map();
    let pause = SHORTEST;
    let runs = false;
    const next = async () => {
      if (runs || waiting.size === 0) return;
      runs = true;
      const key = waiting.keys().next().value;
      waiting.delete(key);
      const failed = await work(key).catch(() => null) === null;
      if (failed) waiting.set(key, true);
      const rest = failed ? pause : 0;
      pause = failed ? Math.min(2 * pause, LONGEST) : SHORTEST;
      setTimeout(() => { runs = false; next(); }, rest);
    };
    return (key) => { waiting.set(key, true); next(); };
  };

  // Fetches HTML of this server, in which everything is escaped. Returns null if the server is busy or does not respond; other errors are
  // not retried.
  const fetched = async (path) => {
    const answer = await fetch(path, { headers: { Accept: "text/html" }, redirect: "error" });
    if (answer.ok) return answer.text();
    return answer.status >= 500 || answer.status === 429 ? null : "";
  };

  // --- The list: filters while the user types, counts machines, and shows the number of failures in the title of the tab
  const filter = find("#filter");
  const phases = find("#phases");
  const KINDS = ["bad", "busy", "good", "idle"];
  const plural = (count, one, many) => `${count} ${count === 1 ? one : many}`;
  // Returns the URL of the list with these changes of its query.
  const listUrl = (changes) => {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) value ? query.set(name, value) : query.delete(name);
    return query.size ? `/?${query}` : "/";
  };
  // The server omits the rows that do not match the query. These rows are loaded at the start.
  let isComplete = body && !filter.value && !phases.dataset.phase;
  const showPhases = (counts) => {
    const link = (phase, kind, count) => {
      const to = document.createElement("a");
      to.href = listUrl({ q: filter.value.trim(), phase });
      if (phase === phases.dataset.phase) to.setAttribute("aria-current", "true");
      const word = document.createElement("span");
      if (kind) { to.className = `phase ${kind}`; word.className = "word"; }
      word.textContent = phase || "all";
      to.append(word, count ? ` ${count}` : "");
      return to;
    };
    const links = [...counts].sort().map(([phase, { kind, count }]) => link(phase, kind, count));
    const all = phases.dataset.phase ? [link("", "", 0), " · "] : [];
    phases.replaceChildren(...all, ...links.flatMap((one) => [one, " "]));
  };
  // Squares of the drawing, by the paths of the machines' pages.
  const rack = find("#rack");
  const squares = new Map();
  const readSquares = () => {
    squares.clear();
    for (const square of rack.children) squares.set(square.getAttribute("href"), square);
  };
  if (body) readSquares();
  const squareOf = (id) => squares.get(`/machines/${id}`);
  const kindOf = (one) => KINDS.find((name) => one.classList.contains(name));
  // Drawing all squares takes longer than filtering the rows, so the drawing follows a keystroke after a pause.
  const drawSquares = seldom(300, () => {
    for (const one of body.rows) {
      const square = squareOf(one.dataset.id);
      if (!square) continue;
      const state = one.hidden ? `${kindOf(one)} pale` : kindOf(one);
      if (square.className !== state) square.className = state;
      const phase = find(".word", one).textContent;
      if (!square.title.endsWith(`: ${phase}`)) square.title = `${find("td.name", one).textContent}: ${phase}`;
    }
  });
  const filterAll = () => {
    if (!isComplete) return;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = new Map();
    let [shown, failed] = [0, 0];
    for (const one of body.rows) {
      const phase = find(".word", one).textContent;
      const kind = kindOf(one);
      const has = words.every((word) => one.dataset.find.includes(word) || phase.toLowerCase().includes(word));
      const isShown = has && (!phases.dataset.phase || phases.dataset.phase === phase);
      if (one.hidden === isShown) one.hidden = !isShown;
      if (isShown) shown += 1;
      if (kind === "bad") failed += 1;
      if (has) counts.set(phase, { kind, count: (counts.get(phase) || { count: 0 }).count + 1 });
    }
    const all = plural(body.rows.length, "machine", "machines");
    find("#count").textContent = shown < body.rows.length ? `${shown} of ${all}` : all;
    find("#none").hidden = body.rows.length > 0;
    document.title = `${failed ? `(${failed}) ` : ""}Machines · drophammer`;
    showPhases(counts);
    drawSquares();
  };
  const recount = seldom(1000, filterAll);
  // --- Selection of machines, which survives updates of their rows
  const all = find("#all");
  const boxes = () => [...body.querySelectorAll("td.select input")];
  const selectedIds = () => new Set(boxes().filter((box) => box.checked).map((box) => box.value));
  const showSelection = () => {
    const count = boxes().filter((box) => box.checked).length;
    find("#selected").textContent = `${plural(count, "machine", "machines")} selected`;
    find("#bulk button").disabled = count === 0;
    find("#bulk").dataset.selected = count;
  };
  const select = (ids) => {
    for (const box of boxes()) if (ids.has(box.value)) box.checked = true;
    showSelection();
  };
  if (body) {
    all.hidden = false;
    all.addEventListener("change", () => {
      for (const box of boxes()) box.checked = all.checked && !box.closest("tr").hidden;
      showSelection();
    });
    body.addEventListener("change", showSelection);
    showSelection();
  }

  const showQuery = seldom(300, () => {
    history.replaceState(null, "", listUrl({ q: filter.value.trim() }));
    for (const link of document.querySelectorAll("table.machines thead a")) {
      const query = new URLSearchParams(link.search);
      filter.value.trim() ? query.set("q", filter.value.trim()) : query.delete("q");
      link.search = query;
    }
  });
  if (body) filter.addEventListener("input", () => { filterAll(); showQuery(); });

  // --- Relative times
  const age = (milliseconds) => {
    const minutes = Math.floor(milliseconds / 60000);
    if (minutes < 1) return "now";
    if (minutes < 60) return `${minutes} min ago`;
    return minutes < 2880 ? `${Math.floor(minutes / 60)} h ago` : `${Math.floor(minutes / 1440)} d ago`;
  };
  setInterval(() => document.querySelectorAll("time.age").forEach((one) => {
    const text = age(Date.now() - Date.parse(one.dateTime));
    if (one.textContent !== text) one.textContent = text;
  }), 10000);

  // --- Typed name of the machine that confirms a change
  const guard = () => document.querySelectorAll("[data-name]").forEach((typed) => {
    const button = find("button.danger", typed.form);
    const check = () => button.disabled = typed.value !== typed.dataset.name;
    typed.addEventListener("input", check);
    check();
  });
  guard();

  // --- Scrolls logs to the end, unless the user has scrolled up
  const follow = (tops = []) => main && main.querySelectorAll("pre.log").forEach((log, index) => {
    log.scrollTop = tops[index] === undefined ? log.scrollHeight : tops[index];
  });
  const tops = () => [...main.querySelectorAll("pre.log")].map((log) =>
    log.scrollTop + log.clientHeight < log.scrollHeight - 4 ? log.scrollTop : undefined);
  follow();

  // --- Refresh of the whole page
  const refreshList = async () => {
    const text = await fetched(listUrl({ q: "", phase: "" }));
    const page = text && new DOMParser().parseFromString(text, "text/html");
    const fresh = page && find("#machines", page);
    if (!fresh) return text;
    const focused = document.activeElement && document.activeElement.closest("#machines tr");
    const selected = selectedIds();
    body.replaceChildren(...fresh.rows);
    rack.replaceChildren(...find("#rack", page).children);
    rack.className = find("#rack", page).className;
    readSquares();
    select(selected);
    if (focused && row(focused.dataset.id)) find("a", row(focused.dataset.id)).focus();
    isComplete = true;
    filterAll();
    return text;
  };
  const again = async () => {
    if (body && !document.hidden) return refreshList();
    const within = document.activeElement && document.activeElement.closest("#main form");
    if (within || document.hidden) { renew(); return ""; }
    const text = await fetched(location.href);
    const page = text && new DOMParser().parseFromString(text, "text/html");
    const fresh = page && find("#main", page);
    if (!fresh) return text;
    const open = [...main.querySelectorAll("details")].map((one) => one.open);
    const scrolled = tops();
    main.replaceChildren(...fresh.childNodes);
    follow(scrolled);
    main.querySelectorAll("details").forEach((one, index) => { if (open[index] !== undefined) one.open = open[index]; });
    document.title = page.title;
    guard();
    followPlans();
    return text;
  };
  const load = oneByOne(again);
  const renew = seldom(2000, () => load("page"));
  // A page with plans that are still being computed is loaded again until all of them are complete.
  const followPlans = () => { if (main && find("[data-unfinished]", main)) renew(); };
  followPlans();

  // --- Refresh of a row
  const row = (id) => body && body.querySelector(`tr[data-id="${CSS.escape(id)}"]`);
  const renewRow = oneByOne(async (id) => {
    const text = await fetched(`/machines/${encodeURIComponent(id)}/row`);
    const old = row(id);
    if (!text || !old) return text;
    const template = document.createElement("template");
    template.innerHTML = text;
    const fresh = find("tr", template.content);
    const focused = old.contains(document.activeElement);
    const box = find("td.select input", old);
    if (fresh) old.replaceWith(fresh);
    if (box && box.checked) select(new Set([id]));
    if (fresh && focused) find("a", fresh).focus();
    recount();
    return text;
  });
  const show = (at, moved) => {
    const set = (selector, text) => { const cell = find(selector, at); if (cell && cell.textContent !== text) cell.textContent = text; };
    at.classList.remove("idle", "good", "bad");
    at.classList.add("busy");
    set(".word", moved.phase);
    set(".what", moved.what);
    set(".rate", moved.rate);
    set(".left", moved.left);
    set(".percent", moved.percent === null ? "" : `${moved.percent} %`);
    const seen = find(".seen", at);
    if (seen) {
      const time = document.createElement("time");
      time.className = "age";
      time.dateTime = new Date().toISOString();
      time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
      time.textContent = "now";
      seen.replaceChildren(time);
    }
    const bar = find("progress", at);
    if (bar) {
      bar.hidden = moved.percent === null;
      bar.value = moved.percent || 0;
    }
  };
  const moved = (all) => {
    const whole = all.filter((one) => one.whole);
    for (const one of all.filter((one) => !one.whole)) {
      const at = row(one.id);
      if (at) show(at, one);
      const square = body && squareOf(one.id);
      if (square && one.percent !== null) square.style.setProperty("--done", `${one.percent}%`);
    }
    if (body) recount();
    if (machine) {
      const own = all.filter((one) => one.id === machine.dataset.machine).pop();
      const progress = find("[data-progress]");
      if (own && !own.whole && progress) show(progress, own);
      if (own && (own.whole || own.log || !own.percent)) renew();
    } else if (body && (whole.length > 20 || whole.some((one) => !row(one.id)))) {
      // A machine without a row is new.
      renew();
    } else if (body) {
      whole.forEach((one) => renewRow(one.id));
    }
  };

  if (body && !isComplete) load("list");

  // --- Box with the problems, which remains collapsed on the other pages of this tab
  const COLLAPSED = "problems-collapsed";
  // Browsers may deny access to the storage.
  const stored = (access) => { try { return access(sessionStorage); } catch { return null; } };
  const problemBox = find("#problems > details");
  if (problemBox) {
    if (stored((storage) => storage.getItem(COLLAPSED))) problemBox.open = false;
    problemBox.addEventListener("toggle", () => stored((storage) =>
      problemBox.open ? storage.removeItem(COLLAPSED) : storage.setItem(COLLAPSED, "yes")));
  }

  // --- Live updates
  if (main && live && window.EventSource) {
    const source = new EventSource("/events");
    source.onopen = () => { live.textContent = "live"; };
    source.onerror = () => {
      const ended = source.readyState === EventSource.CLOSED;
      live.textContent = ended ? "not live: reload the page" : "the server does not respond: this page is outdated";
    };
    source.addEventListener("machines", (event) => moved(JSON.parse(event.data)));
    source.addEventListener("directory", (event) => {
      const section = find("#problems");
      const problems = JSON.parse(event.data).problems;
      section.hidden = problems.length === 0;
      find("summary", section).textContent = plural(problems.length, "problem", "problems");
      const items = problems.map((problem) => {
        const item = document.createElement("li");
        item.textContent = problem;
        return item;
      });
      const further = items.splice(Number(section.dataset.visible));
      const more = find("details.more", section);
      find("ul", section).replaceChildren(...items);
      more.hidden = further.length === 0;
      find("summary", more).textContent = `and ${plural(further.length, "further problem", "further problems")}`;
      find("ul", more).replaceChildren(...further);
      if (body || machine) renew();
    });
    source.addEventListener("logout", () => {
      source.close();
      // A form that was filled in remains visible, even though it can no longer be sent.
      if (!find("textarea")) location.assign("/login");
      live.innerHTML = "the session has ended: <a href=\"/login\">log in</a>";
    });
    // The connection is closed properly, so that the next page can register as a watcher.
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  // --- Keys: / focuses the filter, j and k move between machines
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape" && event.target === filter) filter.blur();
      return;
    }
    if (event.key === "/" && filter) {
      event.preventDefault();
      filter.focus();
    } else if ((event.key === "j" || event.key === "k") && body) {
      const rows = [...body.rows].filter((one) => !one.hidden);
      const now = rows.findIndex((one) => one.contains(document.activeElement));
      const next = event.key === "j" ? Math.min(now + 1, rows.length - 1) : Math.max(now - 1, 0);
      if (rows[next]) find("a", rows[next]).focus();
    }
  });
})();
