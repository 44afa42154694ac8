// Columns sort by their numbers if they have some, else by text, with numbers inside it as numbers.
function sorting(table) {
  const heads = [...table.tHead.rows[0].cells];
  const inOrder = new Intl.Collator("en", { numeric: true });
  const value = (row, column) => {
    const cell = row.cells[column];
    if (heads[column].classList.contains("factor")) return Number(cell.textContent || 1); // no factor is a factor of 1
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent.trim();
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
  let texts = null; // read on first use, so that a large table opens faster
  const count = input.parentElement.querySelector("output");
  input.addEventListener("input", () => {
    texts ??= rows.map((row) => [row.textContent, ...[...row.cells].flatMap(reasons)].join(" ").toLowerCase());
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += !row.hidden;
    });
    count.textContent = `${shown} of ${rows.length}`;
  });
}

document.querySelectorAll(".parameters").forEach(sorting);
document.querySelectorAll("[data-filters]").forEach(filtering);
