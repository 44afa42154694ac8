// A graph is in a box that scrolls, so wheel, finger and keyboard pan it like anything else. Ctrl and the wheel,
// two fingers, the buttons and the keys + - 0 zoom; the mouse drags.
function zooming(frame) {
  const svg = frame.querySelector("svg");
  const shown = frame.parentElement.querySelector("[data-zoom-shown]");
  const least = 0.1;
  const most = 4;
  let scale = 1;
  let chosen = false; // whether the reader has zoomed; until then the page fits the graph

  const natural = () => svg.viewBox.baseVal;
  const room = () => frame.clientWidth;
  const tall = () => parseFloat(getComputedStyle(frame).maxHeight) || frame.clientHeight;

  function set(to) {
    scale = Math.min(most, Math.max(least, to));
    svg.setAttribute("width", Math.ceil(natural().width * scale));
    svg.setAttribute("height", Math.ceil(natural().height * scale));
    if (shown) shown.textContent = `${Math.round(100 * scale)} %`;
  }

  // The point at the given place of the box stays there.
  function zoom(by, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
    const before = svg.getBoundingClientRect();
    const box = frame.getBoundingClientRect();
    const at = [(box.left + x - before.left) / scale, (box.top + y - before.top) / scale];
    chosen = true;
    set(scale * by);
    const after = svg.getBoundingClientRect();
    frame.scrollLeft += after.left + at[0] * scale - (box.left + x);
    frame.scrollTop += after.top + at[1] * scale - (box.top + y);
  }

  function fit() {
    chosen = true;
    set(Math.min(1.5, (room() - 2) / natural().width, (tall() - 2) / natural().height));
    frame.scrollTo(0, 0);
  }

  // Letters stay large enough to read; a wider graph scrolls.
  function settle() {
    set(chosen ? scale : Math.min(1, Math.max(0.72, (room() - 2) / natural().width)));
  }

  frame.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = frame.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false },
  );

  let fingers = 0; // distance between them
  const apart = ([one, other]) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  frame.addEventListener("touchstart", (event) => (fingers = event.touches.length === 2 ? apart(event.touches) : 0));
  frame.addEventListener("touchend", (event) => (fingers = event.touches.length === 2 ? apart(event.touches) : 0));
  frame.addEventListener(
    "touchmove",
    (event) => {
      if (event.touches.length !== 2 || !fingers) return;
      event.preventDefault();
      const [one, other] = event.touches;
      const box = frame.getBoundingClientRect();
      const now = apart(event.touches);
      zoom(now / fingers, (one.clientX + other.clientX) / 2 - box.left, (one.clientY + other.clientY) / 2 - box.top);
      fingers = now;
    },
    { passive: false },
  );

  let from = null;
  let dragged = false;
  frame.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button) return;
    const inside = event.clientX < frame.getBoundingClientRect().left + frame.clientWidth; // not on its scroll bar
    from = inside ? [event.clientX + frame.scrollLeft, event.clientY + frame.scrollTop] : null;
    dragged = false;
  });
  addEventListener("pointermove", (event) => {
    if (!from || event.pointerType !== "mouse") return;
    const to = [from[0] - event.clientX, from[1] - event.clientY];
    if (!dragged && Math.hypot(to[0] - frame.scrollLeft, to[1] - frame.scrollTop) < 5) return;
    dragged = true;
    frame.classList.add("dragged");
    [frame.scrollLeft, frame.scrollTop] = to;
  });
  addEventListener("pointerup", () => {
    from = null;
    frame.classList.remove("dragged");
  });
  // A drag ends in a click, which must not unfold a box.
  frame.addEventListener("click", (event) => dragged && event.stopPropagation(), { capture: true });

  const steps = { "+": 1.25, "=": 1.25, "-": 0.8, _: 0.8 };
  frame.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "0") fit();
    else if (event.key in steps) zoom(steps[event.key]);
    else return;
    event.preventDefault();
  });
  for (const button of frame.parentElement.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => (button.dataset.zoom === "fit" ? fit() : zoom(Number(button.dataset.zoom))));
  }
  frame.addEventListener("redrawn", settle);
  settle();
}

document.querySelectorAll(".scroll.graph").forEach(zooming);
