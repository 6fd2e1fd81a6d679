"use strict";
(() => {
  const tip = document.getElementById("tip");
  const said = document.getElementById("said");
  const group = document.querySelector(".gantts");
  const charts = [...document.querySelectorAll("svg.gantt")];
  const views = charts.map((chart) => chart.parentElement);
  const MAX_ZOOM = 64;
  let zoom = 1;

  const textOf = (bar) => bar.dataset.tip || bar.getAttribute("aria-label") || "";

  const show = (bar, x, y) => {
    tip.textContent = textOf(bar).split(" · ").join("\n");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), innerWidth - box.width - 8);
    const below = y + 18 + box.height < innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, below ? y + 18 : y - box.height - 12)}px`;
  };
  const hide = () => { tip.hidden = true; };
  const barAt = (event) => (event.target instanceof Element ? event.target.closest(".bar") : null);

  document.addEventListener("pointermove", (event) => {
    const bar = barAt(event);
    if (bar) show(bar, event.clientX, event.clientY);
    else if (event.pointerType === "mouse") hide();
  });
  document.addEventListener("click", (event) => {
    const bar = barAt(event);
    if (bar) show(bar, event.clientX, event.clientY);
    else hide();
  });
  const showFocused = () => {
    const bar = document.activeElement;
    if (!bar.matches(".bar:focus-visible")) return false;
    const box = bar.getBoundingClientRect();
    show(bar, box.left + Math.min(box.width, 200) / 2, box.bottom - 12);
    return true;
  };
  document.addEventListener("focusin", (event) => {
    if (showFocused()) said.textContent = textOf(event.target);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", () => { if (!showFocused()) hide(); }, { passive: true, capture: true });

  // One bar of each chart takes the Tab key; arrows walk along a row and between rows.
  const walk = (bar, key) => {
    const bars = [...bar.parentElement.querySelectorAll("rect.bar[tabindex]")];
    const at = bars.indexOf(bar);
    if (key === "ArrowRight") return bars[at + 1];
    if (key === "ArrowLeft") return bars[at - 1];
    const row = Number(bar.getAttribute("y"));
    const rows = [...new Set(bars.map((one) => Number(one.getAttribute("y"))))].sort((a, b) => a - b);
    const next = rows[rows.indexOf(row) + (key === "ArrowDown" ? 1 : -1)];
    const x = bar.getBoundingClientRect().left;
    return bars
      .filter((one) => Number(one.getAttribute("y")) === next)
      .sort((a, b) => Math.abs(a.getBoundingClientRect().left - x) - Math.abs(b.getBoundingClientRect().left - x))[0];
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const bar = barAt(event);
    if (!bar || !event.key.startsWith("Arrow") || !bar.hasAttribute("tabindex")) return;
    event.preventDefault();
    const next = walk(bar, event.key);
    if (!next) return;
    bar.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus({ preventScroll: false });
  });

  const make = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // Names stand in the bars that are wide enough for them.
  const nameBars = (chart, width) => {
    chart.querySelectorAll("text.in-bar").forEach((text) => text.remove());
    for (const bar of chart.querySelectorAll("rect.bar[data-name]")) {
      const room = (parseFloat(bar.getAttribute("width")) / 100) * width;
      const full = bar.dataset.name;
      const fits = (text) => text && room >= text.length * 6.8 + 8;
      const name = [full, full.slice(full.indexOf("[")).slice(0, full.includes("[") ? undefined : 0)].find(fits);
      if (!name) continue;
      const middle = parseFloat(bar.getAttribute("x")) + parseFloat(bar.getAttribute("width")) / 2;
      bar.after(make("text", {
        class: `in-bar ${bar.dataset.text}`, x: `${middle}%`, y: Number(bar.getAttribute("y")) + 16, "aria-hidden": "true",
      }, name));
    }
  };

  const niceStep = (rough) => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
  };
  const drawTicks = (chart, width) => {
    const span = Number(group.dataset.span);
    const height = Number(chart.dataset.height);
    const step = niceStep(span / Math.max(2, Math.floor(width / 65)));
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    const ticks = chart.querySelector(".ticks");
    ticks.replaceChildren();
    chart.querySelectorAll("line.grid").forEach((line) => line.remove());
    const first = chart.querySelector(".bands");
    for (let index = 0; index * step <= span * 1.0001; index += 1) {
      const part = (index * step) / span;
      const x = `${100 * part}%`;
      const place = index === 0 ? "start" : part > 0.97 ? "end" : "middle";
      const text = make("text", { class: "tick", x, y: height + 16 }, (index * step).toFixed(digits));
      text.style.textAnchor = place;
      ticks.append(text);
      first.after(make("line", { class: "grid", x1: x, x2: x, y1: 20, y2: height }));
    }
  };
  const draw = () => {
    for (const chart of charts) {
      chart.style.width = `${100 * zoom}%`;
      const width = chart.getBoundingClientRect().width;
      nameBars(chart, width);
      drawTicks(chart, width);
    }
  };

  const zoomTo = (wanted, clientX) => {
    const next = Math.min(MAX_ZOOM, Math.max(1, wanted));
    if (next === zoom || !views.length) return;
    const view = views[0];
    const anchor = clientX === undefined ? view.clientWidth / 2 : clientX - view.getBoundingClientRect().left;
    const part = (view.scrollLeft + anchor) / (view.clientWidth * zoom);
    zoom = next;
    draw();
    scrollTo(part * view.clientWidth * zoom - anchor);
  };
  // Scroll events come one frame late. One that reports the position which all views were given last
  // tells nothing new; only another position is a move of the reader's.
  let position = 0;
  const scrollTo = (left) => {
    for (const each of views) each.scrollLeft = left;
    position = views[0].scrollLeft;
  };
  for (const view of views) {
    view.addEventListener("scroll", () => {
      if (view.scrollLeft !== position) scrollTo(view.scrollLeft);
    }, { passive: true });
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoomTo(zoom * Math.exp(-event.deltaY / 300), event.clientX);
    }, { passive: false });
    // Dragging with the mouse moves the chart; a touch screen scrolls by itself.
    view.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      const from = { x: event.clientX, left: view.scrollLeft };
      const move = (next) => { view.scrollLeft = from.left + from.x - next.clientX; };
      const stop = () => { removeEventListener("pointermove", move); };
      addEventListener("pointermove", move);
      addEventListener("pointerup", stop, { once: true });
      addEventListener("pointercancel", stop, { once: true });
    });
  }
  document.querySelectorAll("[data-zoom]").forEach((button) => {
    button.addEventListener("click", () => {
      const action = button.dataset.zoom;
      zoomTo(action === "in" ? zoom * 2 : action === "out" ? zoom / 2 : 1);
    });
  });
  document.querySelectorAll("[data-copy]").forEach((button) => {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        said.textContent = button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        said.textContent = button.textContent = "Selected: press Ctrl + C";
      }
    });
  });
  if (charts.length) {
    draw();
    addEventListener("resize", draw);
  }
})();
