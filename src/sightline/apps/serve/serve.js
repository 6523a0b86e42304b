"use strict";
// Keeps a page up to date: fetches it again and swaps the parts that changed. The server makes all text.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const known = new Map();
  const chosen = new Set();

  const parts = (from) => from.querySelectorAll("[data-swap]");
  parts(document).forEach((part) => known.set(part.id, part.innerHTML));

  const tell = (words) => {
    const held = document.querySelector(".lost");
    if (held) held.remove();
    if (!words) return;
    const line = document.createElement("p");
    line.className = "lost";
    line.setAttribute("role", "status");
    line.textContent = words;
    document.body.append(line);
  };

  const swap = (old, fresh) => {
    if (known.get(old.id) === fresh.innerHTML) return;
    if (old.querySelector(".tip:not([hidden])")) return; // a chart value is being read
    known.set(old.id, fresh.innerHTML);
    const open = [...old.querySelectorAll("details")].map((details) => details.open);
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll("details").forEach((details, i) => { details.open = Boolean(open[i]); });
    old.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = chosen.has(box.value); });
    window.sightline.awaken(old);
    pairs(old);
  };

  const arrive = (part) => {
    known.set(part.id, part.innerHTML);
    document.getElementById("content").append(part);
    window.sightline.awaken(part);
  };

  const fetched = async (address, part) => {
    const asked = new URL(address, location.href);
    asked.searchParams.set("part", part);
    const answer = await fetch(asked, { credentials: "same-origin" });
    if (answer.status === 401) throw new Error("The server was restarted: open the address that it printed.");
    if (!answer.ok) throw new Error("The server could not answer this request.");
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };

  // One request at a time: while one is under way, only the latest of those that follow is kept.
  let busy = false;
  let waiting = null;
  const refresh = async (address) => {
    if (busy) { waiting = address; return; }
    busy = true;
    const live = document.getElementById("live");
    try {
      const fresh = await fetched(address, "page");
      parts(fresh).forEach((part) => {
        const old = document.getElementById(part.id);
        if (old) swap(old, part);
        else arrive(part);
      });
      const now = fresh.getElementById("live");
      if (live && now) {
        if (now.dataset.poll) live.dataset.poll = now.dataset.poll;
        else delete live.dataset.poll;
      }
      tell("");
    } catch (problem) {
      tell(problem instanceof TypeError ? "The server does not answer." : problem.message);
    } finally {
      busy = false;
      if (live) live.classList.remove("busy");
    }
    if (waiting !== null) {
      const next = waiting;
      waiting = null;
      await refresh(next);
    }
    curve();
  };

  let later = 0;
  const curve = () => {
    const place = document.querySelector("[data-after]");
    if (!place) return;
    clearTimeout(later);
    later = setTimeout(async () => {
      const address = location.href;
      if (place.dataset.of === address) return;
      try {
        const fresh = await fetched(address, place.dataset.after);
        if (location.href !== address) return;
        place.dataset.of = address;
        place.replaceChildren(...fresh.body.childNodes);
        window.sightline.awaken(place);
      } catch (problem) { /* the numbers above show the error */ }
    }, 300);
  };

  const poll = async () => {
    const live = document.getElementById("live");
    const every = live ? Number(live.dataset.poll) : 0;
    if (!every) return;
    const begun = performance.now();
    if (document.visibilityState === "visible") await refresh(location.href);
    setTimeout(poll, Math.max(every, 4 * (performance.now() - begun)));
  };

  const address = (form) => {
    const fields = [...new FormData(form)].filter(([, value]) => value !== "");
    return `${form.getAttribute("action")}?${new URLSearchParams(fields)}`;
  };

  document.querySelectorAll("form[data-live]").forEach((form) => {
    let soon = 0;
    form.addEventListener("input", (event) => {
      if (event.target.matches("[data-submit]")) { form.submit(); return; }
      clearTimeout(soon);
      soon = setTimeout(() => {
        const next = address(form);
        history.replaceState(null, "", next);
        document.getElementById("live").classList.add("busy");
        refresh(next);
      }, 90);
    });
    form.addEventListener("submit", (event) => event.preventDefault()); // Enter: the input event has sent the request
  });

  document.querySelectorAll("input[type=range][data-for]").forEach((range) => {
    const number = range.form.elements[range.dataset.for];
    const whole = "whole" in range.dataset;
    const follow = () => { if (Number(number.value) > 0) range.value = Math.log10(Number(number.value)); };
    range.addEventListener("input", () => {
      const value = 10 ** Number(range.value);
      number.value = whole ? Math.max(1, Math.round(value)) : Number(value.toPrecision(3));
    });
    number.addEventListener("input", follow);
    follow();
  });

  const count = () => {
    const place = document.getElementById("chosen-count");
    if (place) place.textContent = chosen.size ? `${chosen.size} chosen` : "";
  };
  document.addEventListener("change", (event) => {
    if (!event.target.matches(".choose input[type=checkbox]")) return;
    if (event.target.checked) chosen.add(event.target.value);
    else chosen.delete(event.target.value);
    count();
  });
  document.querySelectorAll(".choose input[type=checkbox]:checked").forEach((box) => chosen.add(box.value));
  count();

  // Show the releases of the pair under the pointer, once it rests.
  const pairs = (root) => root.querySelectorAll("figure[data-pair]").forEach((figure) => {
    const ways = figure.querySelector(".ways");
    let soon = 0;
    let shown = "";
    const ask = () => {
      clearTimeout(soon);
      soon = setTimeout(async () => {
        const cell = "observer" in figure.dataset ? figure : figure.querySelector("td.here");
        if (!cell) return;
        const { subject, observer } = cell.dataset;
        if (!subject) { ways.replaceChildren(); shown = ""; return; }
        const asked = new URL(figure.dataset.pair, location.href);
        asked.searchParams.set("subject", subject);
        asked.searchParams.set("observer", observer);
        if (shown === asked.href) return;
        shown = asked.href;
        try {
          const fresh = await fetched(asked, "pair");
          if (shown === asked.href) ways.replaceChildren(...fresh.body.childNodes);
        } catch (problem) { shown = ""; }
      }, 180);
    };
    ["pointermove", "pointerdown", "keydown"].forEach((kind) => figure.querySelector(".cells").addEventListener(kind, ask));
  });
  pairs(document);

  curve();
  poll();
})();
