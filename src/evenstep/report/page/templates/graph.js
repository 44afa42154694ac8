// Unfolding a box makes room for what it holds: others in its row move aside, rows below move down. Rows and the order
// within them stay as they were laid out. A graph that is taller than wide is set in columns, like a newspaper.
function graphs(geometry) {
  const { drawings, gap, margin, head } = geometry;
  const gutter = 48; // between columns: lines from the foot of one to the top of the next go there
  const byId = (name) => document.getElementById(name);
  const isOpen = (name) => byId(name).classList.contains("open");

  function place(name, room = 0) {
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
    const tops = [];
    for (const row of rows) {
      const tall = Math.max(0, ...row.filter((spot) => spot < count).map((spot) => sizes[spot].height));
      tops.push(top);
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
    let height = top - gap + margin;
    if (count > nodes.length) {
      sizes[nodes.length].y = 0; // lines from outside begin and end at the frame
      sizes[nodes.length + 1].y = height;
    }
    const leftmost = sizes.reduce((least, own) => Math.min(least, own.x - own.width / 2), Infinity);
    sizes.forEach((own) => (own.x += margin - leftmost));
    const columns = room ? inColumns(sizes, rows, links, [...tops, top], room) : null;
    if (columns) height = columns.height;
    nodes.forEach((node, spot) => {
      put(byId(node), sizes[spot]);
      if (columns) byId(node).dataset.column = columns.of[spot];
      else delete byId(node).dataset.column;
    });
    const lines = (byId(name).querySelector(":scope > .inside") || byId(name)).querySelector(":scope > .lines").children;
    links.forEach(([from, to, bends], link) => lines[link].setAttribute("d", path(sizes, from, to, bends, columns)));
    const width = margin + sizes.reduce((most, own) => Math.max(most, own.x + own.width / 2), 0);
    return { width, height };
  }

  function put(node, { x, y, width, height }) {
    node.setAttribute("transform", `translate(${x - width / 2} ${y})`);
    if (!node.classList.contains("box")) return;
    const frame = node.querySelector(":scope > rect");
    frame.setAttribute("width", width);
    frame.setAttribute("height", height);
    node.querySelectorAll(":scope > text").forEach((text) => text.setAttribute("x", (width + 16) / 2)); // beside the arrow
  }

  // Cut the rows into columns, as room allows, with few lines from one to the next; return where each begins.
  function inColumns(sizes, rows, links, tops, room) {
    const last = rows.length - 1;
    const crossing = rows.map(() => 0);
    const rowOf = [];
    rows.forEach((row, place) => row.forEach((spot) => (rowOf[spot] = place)));
    for (const [from, to] of links) {
      crossing[rowOf[from]] += 1;
      crossing[rowOf[to]] -= 1;
    }
    crossing.forEach((_, row) => row && (crossing[row] += crossing[row - 1])); // lines from a row or above to those below
    const left = rows.map((row) => Math.min(...row.map((spot) => sizes[spot].x - sizes[spot].width / 2)));
    const right = rows.map((row) => Math.max(...row.map((spot) => sizes[spot].x + sizes[spot].width / 2)));
    const tall = Math.max(300, 0.3 * room);
    const whole = tops[last + 1] - tops[0];
    let best = null;
    for (let wanted = 2; wanted <= Math.min(8, rows.length) && whole > tall; wanted += 1) {
      if (best && best.height <= tall) break;
      const cuts = [0];
      while (cuts.length < wanted && cuts.at(-1) < last) {
        const begun = cuts.at(-1);
        const goal = tops[begun] + (tops[last + 1] - tops[begun]) / (wanted - cuts.length + 1);
        let cut = begun + 1;
        let least = Infinity;
        for (let row = begun + 1; row <= last; row += 1) {
          const cost = Math.abs(tops[row] - goal) + 200 * crossing[row - 1];
          if (cost < least) [cut, least] = [row, cost];
        }
        cuts.push(cut);
      }
      const columns = cuts.map((first, place) => {
        const end = cuts[place + 1] ?? rows.length;
        const low = left.slice(first, end).reduce((a, b) => Math.min(a, b), Infinity);
        const high = right.slice(first, end).reduce((a, b) => Math.max(a, b), -Infinity);
        return { first, end, low, wide: high - low, top: tops[first], tall: tops[end] - gap - tops[first] };
      });
      const width = 2 * margin + columns.reduce((sum, column) => sum + column.wide, 0) + gutter * (columns.length - 1);
      if (width > room) break;
      const height = Math.max(...columns.map((column) => column.tall)) + 2 * margin + gap;
      if (!best || height < best.height) best = { columns, height };
    }
    if (!best) return null;
    const of = [];
    const above = margin + gap / 2; // room for lines that come in from the top
    let start = margin;
    best.columns.forEach((column, place) => {
      for (let row = column.first; row < column.end; row += 1) {
        for (const spot of rows[row]) {
          of[spot] = place;
          sizes[spot].x += start - column.low;
          sizes[spot].y += above - column.top;
        }
      }
      column.right = start + column.wide;
      column.foot = above + column.tall;
      column.lines = crossing[column.end - 1] || 1;
      column.drawn = 0;
      start += column.wide + gutter;
    });
    return { of, columns: best.columns, height: best.height, above };
  }

  // As in drawing.py: curves between rows, straight down within them. From column to column a line goes around.
  function path(sizes, from, to, bends, columns) {
    let [x, y] = [sizes[from].x, sizes[from].y + sizes[from].height];
    let drawn = `M${x} ${y}`;
    let last = from;
    const goTo = (spot) => {
      const [toX, toY] = [sizes[spot].x, sizes[spot].y];
      const middle = (y + toY) / 2;
      if (columns && columns.of[spot] !== columns.of[last]) drawn += around(columns, columns.of[last], x, toX);
      else drawn += `C${x} ${middle} ${toX} ${middle} ${toX}`;
      drawn += ` ${toY}`;
      [x, y, last] = [toX, toY, spot];
    };
    for (const bend of bends) {
      goTo(bend);
      y += sizes[bend].height;
      drawn += `V${y}`;
    }
    goTo(to);
    return drawn;
  }

  function around(columns, place, x, toX) {
    const column = columns.columns[place];
    const lane = ((column.drawn += 1) - 0.5) / column.lines; // each line has its own lane through the gutter
    const way = column.right + 8 + (gutter - 16) * lane;
    const foot = column.foot + 4 + (gap - 8) * lane;
    const top = columns.above - 3 - (gap / 2) * (1 - lane);
    const round = Math.min(7, (way - x) / 2, Math.abs(toX - way) / 2);
    return (
      `V${foot - round}Q${x} ${foot} ${x + round} ${foot}H${way - round}Q${way} ${foot} ${way} ${foot - round}` +
      `V${top + round}Q${way} ${top} ${way + round} ${top}H${toX - round}Q${toX} ${top} ${toX} ${top + round}L${toX}`
    );
  }

  function redraw(drawing) {
    const { width, height } = place(drawing.id, drawing.parentElement.clientWidth);
    drawing.setAttribute("viewBox", `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`);
    drawing.parentElement.dispatchEvent(new Event("redrawn"));
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
    redraw(drawing);
    let width = drawing.parentElement.clientWidth;
    new ResizeObserver(() => {
      if (drawing.parentElement.clientWidth === width) return;
      width = drawing.parentElement.clientWidth;
      redraw(drawing);
    }).observe(drawing.parentElement);
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

graphs(JSON.parse(document.getElementById("geometry").textContent));
