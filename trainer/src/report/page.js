// Adds the values under the pointer to plots that are complete without it.
(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const axis = (text) => {
    const [low, high, from, to, kind] = text.split(" ");
    return { low: +low, high: +high, from: +from, to: +to, log: kind === "log" };
  };
  const value = (a, place) => {
    const share = (place - a.from) / (a.to - a.from);
    return a.log ? a.low * (a.high / a.low) ** share : a.low + (a.high - a.low) * share;
  };
  const short = (number) => String(+number.toPrecision(4));
  const points = (path) => {
    path.places ??= path.getAttribute("d").replace("Z", "").split(/[ML]/).slice(1).map((p) => p.split(" ").map(Number));
    return path.places;
  };
  const nearest = (places, x) => {
    let best = 0;
    places.forEach((p, i) => { if (Math.abs(p[0] - x) < Math.abs(places[best][0] - x)) best = i; });
    return best;
  };
  const within = (svg, event) => {
    const box = svg.getBoundingClientRect();
    const view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) / box.width * view.width, (event.clientY - box.top) / box.height * view.height];
  };
  const show = (event, text) => {
    tip.textContent = text;
    tip.hidden = text === "";
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6);
    tip.style.left = Math.max(left, 0) + "px";
    tip.style.top = Math.max(event.clientY - tip.offsetHeight - 10, 4) + "px";
  };

  for (const svg of document.querySelectorAll("svg[data-x]")) {
    const paths = [...svg.querySelectorAll("path[data-name]")];
    if (paths.length === 0) continue;
    const cross = document.createElementNS(svg.namespaceURI, "path");
    cross.setAttribute("class", "cross");
    svg.append(cross);
    svg.addEventListener("mousemove", (event) => {
      // The axes may have been chosen anew.
      const x = axis(svg.dataset.x), y = axis(svg.dataset.y);
      const place = within(svg, event)[0];
      const curves = paths.map((path) => {
        const places = points(path);
        const area = path.classList.contains("area");
        const upper = area ? places.slice(0, places.length / 2) : places;
        return { name: path.dataset.name, places, upper, area, i: nearest(upper, place) };
      });
      const own = (curve) => curve.upper[curve.i][0];
      const at = curves.map(own).reduce((a, b) => Math.abs(b - place) < Math.abs(a - place) ? b : a);
      // The curve may have ended before, or begin later.
      const there = curves.filter(({ upper }) => at >= upper[0][0] - 1 && at <= upper[upper.length - 1][0] + 1);
      const lines = there.map(({ name, places, area, i }) => {
        const low = area ? value(y, places[places.length - 1 - i][1]) : 0;
        return name + ": " + short(value(y, places[i][1]) - low);
      });
      cross.setAttribute("d", `M${at} ${y.to}V${y.from}`);
      show(event, [svg.dataset.xname + " " + short(value(x, at)), ...lines].join("\n"));
    });
    svg.addEventListener("mouseleave", () => { cross.setAttribute("d", ""); tip.hidden = true; });
  }

  // Chosen axes: draws the curves over steps again, from their values.
  const runs = JSON.parse(document.getElementById("runs")?.dataset.runs ?? "[]");
  const chosen = { axis: "step", scale: "auto" };
  const names = { step: "step", epoch: "epochs", time: "seconds of training" };
  // The epoch or second of a step, between two known ones.
  const moved = (run, step) => {
    const knots = runs[run]?.[chosen.axis];
    if (chosen.axis === "step" || !knots) return step;
    if (knots.length < 2) return knots[0]?.[1];
    let i = knots.findIndex(([at]) => at >= step);
    i = Math.max(i < 0 ? knots.length - 1 : i, 1);
    const [a, b] = [knots[i - 1], knots[i]];
    return b[0] === a[0] ? b[1] : a[1] + (b[1] - a[1]) * (step - a[0]) / (b[0] - a[0]);
  };
  // As axis.rs does it.
  const roundStep = (low, high, wanted) => {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    return ([1, 2, 5, 10].find((f) => f * power >= 0.95 * rough) ?? 10) * power;
  };
  const label = (v, step) => {
    if (Math.abs(v) < 1e-9 * step) return "0";
    const size = Math.abs(v);
    const digits = (s) => Math.min(Math.max(-Math.floor(Math.log10(s * 1.0001)), 0), 6);
    if (size >= 1e9 || step < 0.9e-4) return v.toExponential(2).replace(/\.?0*e/, "e").replace("e+", "e");
    if (size >= 1e6) return (v / 1e6).toFixed(digits(step / 1e6)) + "M";
    return size >= 1e4 ? (v / 1e3).toFixed(digits(step / 1e3)) + "k" : v.toFixed(digits(step));
  };
  const widened = (low, high) => {
    if (high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high))) return [low, high];
    const room = low === 0 ? 1 : 0.1 * Math.abs(low);
    return [low - room, high + room];
  };
  const ticks = (a, wanted) => {
    const linear = () => {
      const step = roundStep(a.low, a.high, wanted), first = Math.ceil(a.low / step - 1e-6), all = [];
      for (let i = first; i * step <= a.high + 1e-6 * step && all.length < 20; i++) all.push([i * step, label(i * step, step)]);
      return all;
    };
    if (!a.log) return linear();
    const decades = Math.log10(a.high / a.low), factors = decades < 1.5 ? [1, 2, 3, 5] : decades < 3 ? [1, 3] : [1];
    const skip = Math.max(Math.ceil(decades / wanted), 1), all = [];
    for (let p = Math.floor(Math.log10(a.low)); p <= Math.ceil(Math.log10(a.high)); p += skip)
      for (const f of factors) if (f * 10 ** p >= a.low && f * 10 ** p <= a.high) all.push([f * 10 ** p, label(f * 10 ** p, f * 10 ** p)]);
    return all.length > 1 ? all : linear();
  };
  const place = (a, v) => {
    const share = a.log ? Math.log(Math.max(v, a.low) / a.low) / Math.log(a.high / a.low) : (v - a.low) / (a.high - a.low);
    return a.from + (a.to - a.from) * Math.min(Math.max(share, 0), 1);
  };
  const number = (v) => v.toFixed(2);
  const draw = (svg) => {
    svg.first ??= { x: svg.dataset.x, y: svg.dataset.y };
    const curves = [...svg.querySelectorAll("path[data-points]")].map((path) => {
      path.values ??= path.dataset.points.split(" ").map((p) => p.split(",").map(Number));
      const points = path.values.map(([step, v]) => [moved(path.dataset.run, step), v]).filter(([at]) => Number.isFinite(at));
      return { path, points, faint: path.classList.contains("faint") };
    }).filter(({ points }) => points.length > 0);
    const xs = curves.flatMap(({ points }) => points.map(([at]) => at));
    if (xs.length === 0) return;
    const own = axis(svg.first.y), log = chosen.scale === "auto" ? own.log : chosen.scale === "log";
    const all = curves.flatMap(({ points }) => points.map(([, v]) => v)), positive = all.filter((v) => v > 0);
    let [low, high] = [Math.min(...all), Math.max(...all)], y;
    if (log === own.log) y = own;
    else if (log && positive.length > 0) y = { log: true, low: Math.min(...positive) / 1.1, high: Math.max(...positive) * 1.1 };
    else {
      if (svg.dataset.zero === "true") [low, high] = [Math.min(low, 0), Math.max(high, 0)];
      [low, high] = widened(low, high);
      const step = roundStep(low, high, 5);
      y = { log: false, low: Math.floor(low / step + 1e-9) * step, high: Math.ceil(high / step - 1e-9) * step };
    }
    const was = axis(svg.first.x), [left, right] = widened(Math.min(...xs), Math.max(...xs));
    const x = { ...was, low: left, high: right, log: false };
    [y.from, y.to] = [own.from, own.to];
    for (const { path, points } of curves) {
      const places = points.map(([at, v]) => [place(x, at), place(y, v)]);
      path.places = places;
      path.setAttribute("d", "M" + places.map((p) => p.map(number).join(" ")).join("L"));
      const dots = path.nextElementSibling;
      if (dots?.classList.contains("dots")) dots.setAttribute("d", places.map(([px, py]) => `M${number(px - 3)} ${number(py)}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z`).join(""));
    }
    for (const mark of svg.querySelectorAll("path.return")) {
      const at = moved(mark.dataset.run, +mark.dataset.at);
      const there = at >= x.low && at <= x.high;
      mark.setAttribute("d", there ? `M${number(place(x, at))} ${y.to}V${y.from}` : "");
    }
    let grid = "", texts = "";
    for (const [v, text] of ticks(y, 5)) {
      grid += `M${x.from} ${number(place(y, v))}H${x.to}`;
      texts += `<text x="${x.from - 7}" y="${number(place(y, v) + 3.5)}" class="end">${text}</text>`;
    }
    for (const [v, text] of ticks(x, 6)) {
      grid += `M${number(place(x, v))} ${y.from}v4`;
      texts += `<text x="${number(place(x, v))}" y="${y.from + 16}" class="middle">${text}</text>`;
    }
    const text = ({ low, high, from, to, log }) => [low, high, from, to, log ? "log" : "linear"].join(" ");
    [svg.dataset.x, svg.dataset.y, svg.dataset.xname] = [text(x), text(y), names[chosen.axis]];
    svg.querySelector("g.scale").innerHTML = `<path class="grid" d="${grid}"/>${texts}`;
    svg.querySelector("text.x").textContent = names[chosen.axis];
  };
  const over = [...document.querySelectorAll('svg[data-xname="step"]')].filter((svg) => svg.querySelector("path[data-points]"));
  const buttons = [...document.querySelectorAll(".axes button")];
  const press = () => buttons.forEach((b) => b.setAttribute("aria-pressed", String(chosen.axis === b.dataset.axis || chosen.scale === b.dataset.scale)));
  const has = (name) => name === "step" || runs.some((run) => run[name].length > 1);
  for (const button of buttons) {
    button.disabled = button.dataset.axis !== undefined && !has(button.dataset.axis);
    button.addEventListener("click", () => {
      if (button.dataset.axis) chosen.axis = button.dataset.axis; else chosen.scale = button.dataset.scale;
      press();
      over.forEach(draw);
    });
  }
  press();
  for (const choice of document.querySelectorAll(".axes")) choice.hidden = over.length === 0;

  // The confusion matrix: counts of cells that are not zero, as "row,column,count".
  for (const svg of document.querySelectorAll("svg[data-cells]")) {
    const names = JSON.parse(svg.dataset.names), [left, top, side] = svg.dataset.grid.split(" ").map(Number);
    const cells = new Map(svg.dataset.cells.split(" ").map((cell) => cell.split(",")).map(([r, c, n]) => [r + "," + c, n]));
    svg.addEventListener("mousemove", (event) => {
      const [px, py] = within(svg, event);
      const column = Math.floor((px - left) / side), row = Math.floor((py - top) / side);
      const inside = column >= 0 && row >= 0 && column < names.length && row < names.length;
      show(event, inside ? `${names[row]} predicted as ${names[column]}: ${cells.get(row + "," + column) ?? 0}` : "");
    });
    svg.addEventListener("mouseleave", () => { tip.hidden = true; });
  }
})();
