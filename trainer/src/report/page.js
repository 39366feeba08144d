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
    const x = axis(svg.dataset.x), y = axis(svg.dataset.y);
    const paths = [...svg.querySelectorAll("path[data-name]")];
    if (paths.length === 0) continue;
    const cross = document.createElementNS(svg.namespaceURI, "path");
    cross.setAttribute("class", "cross");
    svg.append(cross);
    svg.addEventListener("mousemove", (event) => {
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
