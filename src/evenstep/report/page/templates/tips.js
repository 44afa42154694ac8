"use strict";

// An element's tip appears next to it, for pointer and keyboard alike. All text goes in as text, never
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
      if (!cell.textContent.trim()) return;
      const words = reasons(cell);
      const text = cell.classList.contains("notes") ? words.join("; ") : [cell.textContent.trim(), ...words].join(" · ");
      list.append(line("dt", heads[place].textContent.trim()), line("dd", text));
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
    tip.style.left = "0px"; // its last place must not narrow it
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
  // A page that scrolls under a resting pointer sends events too; only a moving pointer shows tips.
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

// A cell's reasons: its own if it has some, else those in the lists above the table, by column and letters.
function reasons(cell) {
  const text = cell.textContent.trim();
  if (!text) return [];
  if (cell.dataset.why) return cell.dataset.why.split("\n");
  const { reason, notes } = cell.closest("table").tHead.rows[0].cells[cell.cellIndex].dataset;
  const names = notes ? text.split(" ").map((letter) => notes + letter) : reason ? [reason] : [];
  return names.map((name) => document.getElementById(name).textContent);
}

tooltips();
