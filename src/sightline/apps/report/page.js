"use strict";
// Reading values off a chart by pointer, finger or arrow keys. All words come from the page itself and are set as text.
(() => {
  const nearest = (places, wanted) => {
    let best = 0;
    for (let i = 1; i < places.length; i += 1) {
      if (Math.abs(places[i] - wanted) < Math.abs(places[best] - wanted)) best = i;
    }
    return best;
  };

  const element = (name, className, words) => {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = words;
    return made;
  };

  const enliven = (figure) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot");
    const cursor = figure.querySelector(".cursor");
    const tip = figure.querySelector(".tip");
    const hair = cursor.querySelector(".hair");
    const dots = cursor.querySelectorAll(".dot");
    let place = -1;

    const show = (chosen) => {
      place = chosen;
      const across = `${data.x[chosen] / 10}%`;
      hair.setAttribute("x1", across);
      hair.setAttribute("x2", across);
      tip.replaceChildren(element("b", "", data.words[chosen]));
      data.lines.forEach((line, i) => {
        const at = line.y[chosen];
        dots[i].setAttribute("visibility", at === null ? "hidden" : "inherit");
        if (at === null) return;
        dots[i].setAttribute("cx", across);
        dots[i].setAttribute("cy", `${at / 10}%`);
        const row = element("span", `s${(i % 6) + 1}`, line.name);
        row.append(element("em", "", line.words[chosen]));
        tip.append(row);
      });
      cursor.setAttribute("visibility", "visible");
      tip.hidden = false;
      beside((data.x[chosen] / 1000) * plot.clientWidth);
    };

    const beside = (at) => {
      const right = at + 14;
      const fits = right + tip.offsetWidth <= plot.clientWidth;
      tip.style.left = `${fits ? right : Math.max(0, at - 14 - tip.offsetWidth)}px`;
    };

    const hide = () => {
      place = -1;
      cursor.setAttribute("visibility", "hidden");
      tip.hidden = true;
    };

    const follow = (event) => {
      const box = plot.querySelector(".frame").getBoundingClientRect();
      show(nearest(data.x, (1000 * (event.clientX - box.left)) / box.width));
    };

    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!(event.key in steps)) return;
      event.preventDefault();
      const start = place < 0 ? data.x.length - 1 : place + steps[event.key];
      show(Math.min(data.x.length - 1, Math.max(0, start)));
    });
  };

  const explore = (figure) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const cells = figure.querySelectorAll(".cells .cell");
    const words = figure.querySelector(".chosen");
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: data.across, ArrowUp: -data.across };
    let place = -1;

    const show = (chosen) => {
      if (chosen < 0 || chosen >= cells.length) return;
      if (place >= 0) cells[place].classList.remove("here");
      place = chosen;
      cells[place].classList.add("here");
      words.textContent = data.words[place];
    };

    const follow = (event) => {
      const cell = event.target.closest("[data-place]");
      if (cell) show(Number(cell.dataset.place));
    };
    const map = figure.querySelector(".cells");
    map.addEventListener("pointermove", follow);
    map.addEventListener("pointerdown", follow);
    map.addEventListener("keydown", (event) => {
      if (!(event.key in steps)) return;
      event.preventDefault();
      show(place < 0 ? 0 : place + steps[event.key]);
    });
  };

  // A map: which cell is pointed at follows from the place, the words from the lists beside it.
  const chart = (figure) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const [across, down] = [data.columns.length, data.rows.length];
    const [field, words, mark] = [".cells", ".chosen", ".here"].map((name) => figure.querySelector(name));
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-across, 0], End: [across, 0], PageUp: [0, -10], PageDown: [0, 10] };
    const within = (place, count) => Math.min(count - 1, Math.max(0, place));
    let place = null;

    const show = (x, y) => {
      place = [x, y];
      mark.setAttribute("x", x);
      mark.setAttribute("y", y);
      mark.setAttribute("visibility", "visible");
      const names = { of: data.rows[y], by: data.columns[x] };
      words.textContent = data.phrases[data.cells[y * across + x]].replace(/\{(of|by)\}/g, (_, name) => names[name]);
      if (!data.of) return;
      figure.dataset.observer = data.by[x];
      figure.dataset.subject = data.of[y].find((name) => name !== data.by[x]) || "";
    };

    const follow = (event) => {
      const box = field.querySelector("svg").getBoundingClientRect();
      show(within(Math.floor((across * (event.clientX - box.left)) / box.width), across), within(Math.floor((down * (event.clientY - box.top)) / box.height), down));
    };
    field.addEventListener("pointermove", follow);
    field.addEventListener("pointerdown", follow);
    field.addEventListener("keydown", (event) => {
      if (!(event.key in steps)) return;
      event.preventDefault();
      const [x, y] = steps[event.key];
      if (place === null) show(0, 0);
      else show(within(place[0] + x, across), within(place[1] + y, down));
    });
  };

  // Called for the page, and for every part that is added to it later.
  const awaken = (root) => {
    root.querySelectorAll("figure.chart").forEach((figure) => {
      if (figure.querySelector("script")) enliven(figure);
    });
    root.querySelectorAll("figure.heat").forEach(explore);
    root.querySelectorAll("figure.map").forEach(chart);
  };

  awaken(document);
  window.sightline = { awaken };
  window.addEventListener("beforeprint", () => {
    // On paper nothing can be opened, but a table of hundreds of rows buries the rest.
    document.querySelectorAll("details").forEach((details) => { if (details.querySelectorAll("tr").length <= 12) details.open = true; });
  });
  document.documentElement.dataset.ready = "yes";
})();
