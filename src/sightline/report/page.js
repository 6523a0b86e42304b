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

  // Called for the page, and by whoever adds a part to it later.
  const awaken = (root) => {
    root.querySelectorAll("figure.chart").forEach((figure) => {
      if (figure.querySelector("script")) enliven(figure);
    });
    root.querySelectorAll("figure.heat").forEach(explore);
  };

  awaken(document);
  window.sightline = { awaken };
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((details) => details.setAttribute("open", ""));
  });
  document.documentElement.dataset.ready = "yes";
})();
