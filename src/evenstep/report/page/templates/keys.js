// A drawing is one stop for the Tab key; inside it, arrow keys go to the nearest element in their direction.
function arrowKeys(drawing) {
  const seen = () => [...drawing.querySelectorAll("[data-tip]")].filter((one) => one.getClientRects().length);

  function middle(element) {
    const shape = element.querySelector(":scope > rect, :scope > circle") || element;
    const at = shape.getBoundingClientRect();
    return [at.left + at.width / 2, at.top + Math.min(at.height, 40) / 2];
  }

  function nearest(from, key) {
    const across = key === "ArrowLeft" || key === "ArrowRight" ? 0 : 1;
    const sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
    const start = middle(from);
    let best = null;
    let least = Infinity;
    const column = (element) => (element.closest("svg > .node") || element).dataset.column;
    for (const one of seen()) {
      if (across && column(one) !== column(from)) continue;
      const at = middle(one);
      const ahead = sign * (at[across] - start[across]);
      const aside = Math.abs(at[1 - across] - start[1 - across]);
      if (one !== from && ahead > 1 && ahead + 2 * aside < least) {
        best = one;
        least = ahead + 2 * aside;
      }
    }
    if (best || !across || column(from) === undefined) return best;
    const all = seen(); // after the last of a column comes the first of the next
    return all[all.indexOf(from) + sign] || null;
  }

  function go(to) {
    drawing.querySelectorAll("[tabindex='0']").forEach((one) => one.setAttribute("tabindex", "-1"));
    to.setAttribute("tabindex", "0");
    to.focus();
  }

  drawing.addEventListener("keydown", (event) => {
    const from = event.target.closest("[data-tip]");
    if (!from || event.ctrlKey || event.metaKey || event.altKey) return;
    const ends = { Home: () => seen()[0], End: () => seen().at(-1) };
    const to = event.key in ends ? ends[event.key]() : event.key.startsWith("Arrow") && nearest(from, event.key);
    if (to || event.key.startsWith("Arrow")) event.preventDefault();
    if (to) go(to);
  });
  // Not on the drawing itself: Chromium makes an SVG that listens for focus focusable.
  drawing.parentElement.addEventListener("focusin", (event) => {
    const at = event.target.closest("[data-tip]");
    if (!at || at.getAttribute("tabindex") === "0") return;
    drawing.querySelectorAll("[tabindex='0']").forEach((one) => one.setAttribute("tabindex", "-1"));
    at.setAttribute("tabindex", "0");
  });
}

document.querySelectorAll("[data-roving]").forEach(arrowKeys);
