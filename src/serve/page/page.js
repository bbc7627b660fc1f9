// What makes the pages live. Without it they show what was true when they were loaded, and all of their forms work.
"use strict";
(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const body = find("#machines");
  const main = find("#main");
  const machine = find("[data-machine]");
  const live = find("#live");

  // Several calls within that time are one.
  const seldom = (milliseconds, work) => {
    let waits = false;
    return () => {
      if (waits) return;
      waits = true;
      setTimeout(() => { waits = false; work(); }, milliseconds);
    };
  };

  // One request at a time, however often something changes meanwhile; after a failure, pauses that double up to a minute. `work` returns
  // null when it has failed.
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

  // Our own server's HTML, in which everything is escaped. Null when the server is busy or does not answer; nothing else is worth another
  // try.
  const fetched = async (path) => {
    const answer = await fetch(path, { headers: { Accept: "text/html" }, redirect: "error" });
    if (answer.ok) return answer.text();
    return answer.status >= 500 || answer.status === 429 ? null : "";
  };

  // --- the filter, while one types
  const filter = find("#filter");
  const matches = (row) => row.hidden = !row.dataset.find.includes(filter.value.trim().toLowerCase());
  const filterAll = () => body && filter && !new URLSearchParams(location.search).get("q") && [...body.rows].forEach(matches);
  if (filter && body) filter.addEventListener("input", filterAll);

  // --- a machine's name typed in before its reinstall
  const guard = () => {
    const typed = find("[data-name]");
    const button = typed && find("button.danger", typed.form);
    if (!button) return;
    const check = () => button.disabled = typed.value !== typed.dataset.name;
    typed.addEventListener("input", check);
    check();
  };
  guard();

  // --- the end of a log, unless somebody reads further up
  const follow = (tops = []) => main && main.querySelectorAll("pre.log").forEach((log, index) => {
    log.scrollTop = tops[index] === undefined ? log.scrollHeight : tops[index];
  });
  const tops = () => [...main.querySelectorAll("pre.log")].map((log) =>
    log.scrollTop + log.clientHeight < log.scrollHeight - 4 ? log.scrollTop : undefined);
  follow();

  // --- the page as it is now
  const again = async () => {
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
    guard();
    filterAll();
    return text;
  };
  const load = oneByOne(again);
  const renew = seldom(2000, () => load("page"));

  // --- a row of the list
  const row = (id) => body && body.querySelector(`tr[data-id="${CSS.escape(id)}"]`);
  const renewRow = oneByOne(async (id) => {
    const text = await fetched(`/machines/${encodeURIComponent(id)}/row`);
    const old = row(id);
    if (!text || !old) return text;
    const template = document.createElement("template");
    template.innerHTML = text;
    const fresh = find("tr", template.content);
    const focused = old.contains(document.activeElement);
    if (fresh) old.replaceWith(fresh);
    if (fresh && filter) matches(fresh);
    if (fresh && focused) find("a", fresh).focus();
    if (!location.search) recount();
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
    }
    if (body && !location.search) recount();
    if (machine) {
      const own = all.filter((one) => one.id === machine.dataset.machine).pop();
      const progress = find("[data-progress]");
      if (own && !own.whole && progress) show(progress, own);
      if (own && (own.whole || own.log || !own.percent)) renew();
    } else if (body && whole.length > 20) {
      renew();
    } else if (body) {
      whole.forEach((one) => renewRow(one.id));
    }
  };

  // --- how many are in which phase
  const phases = find("#phases");
  const recount = seldom(1000, () => {
    const counts = new Map();
    for (const one of body.rows) {
      const word = find(".word", one).textContent;
      const kind = ["busy", "good", "bad", "idle"].find((name) => one.classList.contains(name));
      counts.set(word, { kind, count: (counts.get(word) || { count: 0 }).count + 1 });
    }
    phases.replaceChildren(...[...counts].sort().map(([word, { kind, count }]) => {
      const link = document.createElement("a");
      link.className = `phase ${kind}`;
      link.href = `/?${new URLSearchParams({ phase: word })}`;
      const name = document.createElement("span");
      name.className = "word";
      name.textContent = word;
      link.append(name, ` ${count}`);
      return link;
    }));
  });

  // --- live
  if (main && live && window.EventSource) {
    const source = new EventSource("/events");
    source.onopen = () => { live.textContent = "live"; };
    source.onerror = () => {
      const ended = source.readyState === EventSource.CLOSED;
      live.textContent = ended ? "not live: load the page again" : "the server does not answer: what is shown is old";
    };
    source.addEventListener("machines", (event) => moved(JSON.parse(event.data)));
    source.addEventListener("directory", (event) => {
      const section = find("#problems");
      const problems = JSON.parse(event.data).problems;
      section.hidden = problems.length === 0;
      find("ul", section).replaceChildren(...problems.map((problem) => {
        const item = document.createElement("li");
        item.textContent = problem;
        return item;
      }));
      if (body || machine) renew();
    });
    // A connection is closed in order, so that the next page finds a place.
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  // --- keys: / filters, j and k go from machine to machine
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) {
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
