"use strict";

// What is said of a thing appears beside it, for the pointer and for the keyboard alike. All text goes in as text, never
// as markup: names come from the user's model.
function tooltips() {
  const tip = document.getElementById("tip");
  let shownFor = null;

  function line(tag, text, name) {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  function parameter(row) {
    const part = document.createElement("section");
    const heads = row.closest("table").tHead.rows[0].cells;
    const list = document.createElement("dl");
    [...row.cells].forEach((cell, place) => {
      if (!place) return part.append(line("p", cell.textContent, "name"));
      list.append(line("dt", heads[place].textContent.trim()), line("dd", cell.textContent.trim()));
    });
    part.append(list);
    return part;
  }

  function fill(target) {
    const [title, ...said] = target.dataset.tip.split("\n");
    tip.replaceChildren(line("p", title, "name"), ...said.map((text) => line("p", text)));
    const prefix = target.closest("svg").dataset.rows;
    for (const place of (target.dataset.rows || "").split(" ").filter(Boolean)) {
      tip.append(parameter(document.getElementById(prefix + place)));
    }
  }

  function place(target) {
    const gap = 10;
    const shape = target.querySelector(":scope > rect, :scope > circle") || target;
    const at = shape.getBoundingClientRect();
    tip.style.left = "0px"; // where it stood last must not narrow it
    const own = tip.getBoundingClientRect();
    const beside = at.right + gap + own.width <= innerWidth;
    const below = at.bottom + gap + own.height <= innerHeight;
    const left = beside ? at.right + gap : Math.min(at.left, innerWidth - own.width - gap);
    const top = beside ? at.top : below ? at.bottom + gap : at.top - own.height - gap;
    tip.style.left = `${Math.max(gap, left)}px`;
    tip.style.top = `${Math.max(gap, Math.min(top, innerHeight - own.height - gap))}px`;
  }

  function show(target) {
    if (!target) return hide();
    if (target === shownFor) return;
    hide();
    shownFor = target;
    fill(target);
    tip.hidden = false;
    place(target);
    target.setAttribute("aria-describedby", "tip");
  }

  function hide() {
    if (shownFor) shownFor.removeAttribute("aria-describedby");
    shownFor = null;
    tip.hidden = true;
  }

  const told = (event) => event.target.closest && event.target.closest("[data-tip]");
  // A page that scrolls under a resting pointer sends events too; the pointer says something only when it moves.
  let pointer = "";
  document.addEventListener("mouseover", (event) => {
    const now = `${event.clientX} ${event.clientY}`;
    if (now !== pointer) show(told(event));
    pointer = now;
  });
  document.addEventListener("mouseleave", hide);
  document.addEventListener("focusin", (event) => show(told(event)));
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", () => shownFor && place(shownFor), { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
}

// A drawing is one stop for the Tab key; inside it arrow keys go to the nearest thing in their direction.
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
    for (const one of seen()) {
      const at = middle(one);
      const ahead = sign * (at[across] - start[across]);
      const aside = Math.abs(at[1 - across] - start[1 - across]);
      if (one !== from && ahead > 1 && ahead + 2 * aside < least) {
        best = one;
        least = ahead + 2 * aside;
      }
    }
    return best;
  }

  function go(to) {
    drawing.querySelectorAll("[tabindex='0']").forEach((one) => one.setAttribute("tabindex", "-1"));
    to.setAttribute("tabindex", "0");
    to.focus();
  }

  drawing.addEventListener("keydown", (event) => {
    const from = event.target.closest("[data-tip]");
    if (!from) return;
    const ends = { Home: () => seen()[0], End: () => seen().at(-1) };
    const to = event.key in ends ? ends[event.key]() : event.key.startsWith("Arrow") && nearest(from, event.key);
    if (to || event.key.startsWith("Arrow")) event.preventDefault();
    if (to) go(to);
  });
  // Not on the drawing itself: Chromium takes an SVG that listens to focus for one that wants it.
  drawing.parentElement.addEventListener("focusin", (event) => {
    const at = event.target.closest("[data-tip]");
    if (!at || at.getAttribute("tabindex") === "0") return;
    drawing.querySelectorAll("[tabindex='0']").forEach((one) => one.setAttribute("tabindex", "-1"));
    at.setAttribute("tabindex", "0");
  });
}

// Unfolding a box makes room for what it holds: others in its row move aside, rows below move down. Rows and the order
// in them were laid out beforehand and stay.
function unfolding(geometry) {
  const { drawings, gap, margin, head } = geometry;
  const byId = (name) => document.getElementById(name);
  const isOpen = (name) => byId(name).classList.contains("open");

  function place(name) {
    const { spots, nodes, rows, links, count } = drawings[name];
    const sizes = spots.map(([x, width, height], spot) => {
      if (spot >= nodes.length || !isOpen(nodes[spot])) return { x, width, height, grown: 0 };
      const inside = place(nodes[spot]);
      const wide = Math.max(width, inside.width);
      const shift = (wide - inside.width) / 2;
      byId(nodes[spot]).querySelector(":scope > .inside").setAttribute("transform", `translate(${shift} ${head})`);
      return { x, width: wide, height: inside.height + head, grown: wide - width };
    });
    let top = margin;
    for (const row of rows) {
      const tall = Math.max(0, ...row.filter((spot) => spot < count).map((spot) => sizes[spot].height));
      let left = 0;
      let right = row.reduce((sum, spot) => sum + sizes[spot].grown, 0);
      for (const spot of row) {
        const own = sizes[spot];
        right -= own.grown;
        own.x += (left - right) / 2;
        left += own.grown;
        if (spot >= count) own.height = tall;
        own.y = top + (tall - own.height) / 2;
      }
      top += tall + gap;
    }
    const height = top - gap + margin;
    if (count > nodes.length) {
      sizes[nodes.length].y = 0; // lines from outside begin at the frame, and end there
      sizes[nodes.length + 1].y = height;
    }
    const leftmost = Math.min(...sizes.map((own) => own.x - own.width / 2));
    sizes.forEach((own) => (own.x += margin - leftmost));
    nodes.forEach((node, spot) => put(byId(node), sizes[spot]));
    const lines = (byId(name).querySelector(":scope > .inside") || byId(name)).querySelector(":scope > .lines").children;
    links.forEach(([from, to, bends], link) => lines[link].setAttribute("d", path(sizes, from, to, bends)));
    return { width: margin + Math.max(...sizes.map((own) => own.x + own.width / 2)), height };
  }

  function put(node, { x, y, width, height }) {
    node.setAttribute("transform", `translate(${x - width / 2} ${y})`);
    if (!node.classList.contains("box")) return;
    const frame = node.querySelector(":scope > rect");
    frame.setAttribute("width", width);
    frame.setAttribute("height", height);
    node.querySelectorAll(":scope > text").forEach((text) => text.setAttribute("x", (width + 16) / 2)); // beside the arrow
  }

  // As in the drawing's own file: curves between rows, straight down inside them.
  function path(sizes, from, to, bends) {
    let [x, y] = [sizes[from].x, sizes[from].y + sizes[from].height];
    let drawn = `M${x} ${y}`;
    const curve = (toX, toY) => {
      const middle = (y + toY) / 2;
      drawn += `C${x} ${middle} ${toX} ${middle} ${toX} ${toY}`;
      [x, y] = [toX, toY];
    };
    for (const bend of bends) {
      curve(sizes[bend].x, sizes[bend].y);
      y += sizes[bend].height;
      drawn += `V${y}`;
    }
    curve(sizes[to].x, sizes[to].y);
    return drawn;
  }

  function redraw(drawing) {
    const { width, height } = place(drawing.id);
    drawing.setAttribute("width", Math.ceil(width));
    drawing.setAttribute("height", Math.ceil(height));
    drawing.setAttribute("viewBox", `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`);
  }

  function set(box, open) {
    box.classList.toggle("open", open);
    box.setAttribute("aria-expanded", String(open));
  }

  function toggle(box) {
    set(box, !box.classList.contains("open"));
    redraw(box.closest("svg"));
  }

  for (const drawing of document.querySelectorAll(".network")) {
    if (!(drawing.id in drawings)) continue;
    drawing.addEventListener("click", (event) => {
      const node = event.target.closest(".node");
      if (node && node.classList.contains("box")) toggle(node);
    });
    drawing.addEventListener("keydown", (event) => {
      if (!event.target.classList.contains("box") || (event.key !== "Enter" && event.key !== " ")) return;
      event.preventDefault();
      toggle(event.target);
    });
  }
  for (const [key, open] of [["unfold", true], ["fold", false]]) {
    for (const button of document.querySelectorAll(`[data-${key}]`)) {
      button.addEventListener("click", () => {
        const drawing = byId(button.dataset[key]);
        drawing.querySelectorAll(".box").forEach((box) => set(box, open));
        redraw(drawing);
      });
    }
  }
}

// Columns sort by their numbers where they have some, else by text in which numbers count as such.
function sorting(table) {
  const heads = [...table.tHead.rows[0].cells];
  const inOrder = new Intl.Collator("en", { numeric: true });
  const value = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent;
  };
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((one) => one.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [value(row, column), row]);
      rows.sort(([a], [b]) => sign * (typeof a === "number" ? a - b : inOrder.compare(a, b)));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

function filtering(input) {
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  let texts = null; // read when first needed: a large table opens faster without
  const count = input.parentElement.querySelector("output");
  input.addEventListener("input", () => {
    texts ??= rows.map((row) => row.textContent.toLowerCase());
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += !row.hidden;
    });
    count.textContent = `${shown} of ${rows.length}`;
  });
}

tooltips();
unfolding(JSON.parse(document.getElementById("geometry").textContent));
document.querySelectorAll("[data-roving]").forEach(arrowKeys);
document.querySelectorAll(".parameters").forEach(sorting);
document.querySelectorAll("[data-filters]").forEach(filtering);
