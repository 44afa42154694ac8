"""Open the report page in headless Chromium and use it as a reader does: pointer, keyboard, phone, dark, print."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import evenstep
from tests.report.test_page import NASTY, a_check, a_record, a_search, chain, deep

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; it is in the extra 'dev'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")

LAYER = "svg.network > .layer"


@dataclass
class Opened:
    """A page in the browser, with what it complained of and what it asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # No sandbox: tests often run as root in a container, and the only page opened is our own.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Write a report and open it; at the end see that nothing was complained of or asked for, whatever was done."""
    contexts: list[Any] = []
    pages: list[Opened] = []

    def call(subjects: Any, *, width: int = 1100, height: int = 800, scheme: str = "light", **options: Any) -> Opened:
        path = evenstep.write_report(subjects, tmp_path / f"{len(pages)}.html", **options)
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(20_000)
        contexts.append(context)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("dialog", lambda dialog: found.complaints.append(dialog.message))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(path.as_uri())
        pages.append(found)
        return found

    yield call
    for context in contexts:
        context.close()
    for number, found in enumerate(pages):
        assert found.complaints == []
        assert [url for url in found.requests if not url.startswith("data:")] == [
            (tmp_path / f"{number}.html").as_uri()
        ]


def everything() -> dict[str, Any]:
    return {"net": chain(["stem", "body.0", "body.1", "head"], skip=True), "base": a_search(), "widths": a_check()}


def tip(page: Any) -> str:
    return str(page.locator("#tip").inner_text()) if page.locator("#tip").is_visible() else ""


def colours(png: bytes) -> int:
    channels = np.rint(255 * imread(io.BytesIO(png))[:, :, :3]).astype(np.int64)
    return len(np.unique(channels @ np.array([1 << 16, 1 << 8, 1])))


def column(page: Any, place: int) -> list[str]:
    return [text.strip() for text in page.locator(f".parameters tbody tr > :nth-child({place})").all_inner_texts()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_is_drawn_and_fits(opened: Open, scheme: str, width: int) -> None:
    page = opened({**everything(), "study": a_record()}, width=width, scheme=scheme).page
    for selector in ("svg.network", ".parameters", ".search svg", ".check svg", ".study table"):
        assert page.locator(selector).first.is_visible()
    assert colours(page.screenshot(full_page=True)) > 50
    assert colours(page.locator("svg.network").screenshot()) > 20
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128")
    assert light == (scheme == "light")


def test_a_folded_graph_fits_a_phone_when_unfolded(opened: Open) -> None:
    page = opened(deep(), width=375).page
    page.click("[data-unfold]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.querySelector('.scroll.graph').scrollHeight > innerHeight")


def test_pointing_at_a_layer_says_what_it_got(opened: Open) -> None:
    plan = chain(["stem", "head"])
    page = opened(plan).page
    assert tip(page) == ""
    page.hover(f"{LAYER} >> nth=0")
    said = tip(page)
    weight = plan["stem.weight"]
    own = plan.own_factors(weight)
    assert "width" in [factor.name for factor in own]
    reasons = [f"{factor.value:.4g} · {factor.why}" for factor in own]
    for text in ("stem.weight", "8 × 8", f"{weight.std:.4g}", f"{0.1 * weight.lr_scale:.4g}", *reasons):
        assert text in said
    assert weight.init_reason in said
    assert "path weight: 100 %" in said
    page.hover("h1")
    assert tip(page) == ""


def test_the_keyboard_goes_everywhere(opened: Open) -> None:
    page = opened(chain(["stem", "body", "head"])).page
    page.focus("[data-zoom=fit]")
    page.keyboard.press("Tab")  # one stop for all of the graph
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "input"
    page.keyboard.press("ArrowDown")
    assert "stem.weight" in tip(page)
    page.keyboard.press("ArrowDown")
    assert "body.weight" in tip(page)
    page.keyboard.press("ArrowUp")
    assert "stem.weight" in tip(page)
    page.keyboard.press("End")
    assert "head.weight" in tip(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    page.keyboard.press("Escape")
    assert tip(page) == ""
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "search"  # out of the graph, to the filter


def test_what_is_focused_is_scrolled_to_and_said(opened: Open) -> None:
    page = opened(deep(), width=375, height=700).page
    page.click("[data-unfold]")
    page.focus("svg.network > .box >> nth=0")
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    inside = "r => r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth"
    assert page.evaluate(f"({inside})(document.activeElement.querySelector('rect, circle').getBoundingClientRect())")
    assert page.evaluate(f"({inside})(document.getElementById('tip').getBoundingClientRect())")


def test_points_of_charts_speak_too(opened: Open) -> None:
    page = opened(a_search()).page
    page.hover(".mark.diverged[data-tip]")
    assert "diverged: 1 of 2 seeds" in tip(page)
    page.focus(".mark.mean >> nth=0")
    assert "learning rate 0.1" in tip(page)
    # Another thing comes to lie under the pointer, which has not moved.
    assert page.evaluate("() => { const from = scrollY; scrollBy(0, from ? -from : 40); return scrollY - from; }") != 0
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert "learning rate 0.1" in tip(page)
    page.keyboard.press("ArrowRight")
    assert "learning rate 0.2" in tip(page)
    assert "rate 0.2" in page.locator(".flag.chosen").text_content()
    assert page.locator(".area.bracket").is_visible()


def test_columns_sort_by_click_and_by_key(opened: Open) -> None:
    plan = chain([f"layer{i}" for i in (10, 9, 1)])
    page = opened(plan).page
    name = page.locator(".parameters th button").nth(0)
    name.click()
    assert column(page, 1) == [f"layer{i}.{kind}" for i in (1, 9, 10) for kind in ("bias", "weight")]
    assert page.locator(".parameters th").nth(0).get_attribute("aria-sort") == "ascending"
    name.focus()
    page.keyboard.press("Enter")
    assert column(page, 1)[0] == "layer10.weight"
    assert page.locator(".parameters th").nth(0).get_attribute("aria-sort") == "descending"
    page.locator(".parameters th button").nth(4).focus()
    page.keyboard.press("Space")
    factors = list(map(float, column(page, 5)))
    assert factors == sorted(factors)
    assert page.locator(".parameters th").nth(0).get_attribute("aria-sort") == "none"


def test_the_filter_narrows_and_counts(opened: Open) -> None:
    page = opened(chain(["stem", "body", "head"])).page
    page.fill("[data-filters]", "BODY.weight weight")
    shown = page.locator(".parameters tbody tr:visible")
    assert shown.count() == 1
    assert shown.locator("th").inner_text() == "body.weight"
    assert page.locator(".tools output").inner_text() == "1 of 6"
    page.fill("[data-filters]", "no such thing")
    assert shown.count() == 0
    page.fill("[data-filters]", "")
    assert shown.count() == 6
    page.hover(f"{LAYER} >> nth=0")
    assert "stem.weight" in tip(page)


def overlaps(page: Any) -> int:
    """Count visible boxes that lie on one another without one being inside the other."""
    count: int = page.evaluate(
        """() => {
          const seen = [...document.querySelectorAll('.network .node')].filter((n) => n.getClientRects().length);
          const at = (n) => n.querySelector(':scope > rect, :scope > circle').getBoundingClientRect();
          const spots = seen.map(at);
          let found = 0;
          seen.forEach((one, i) => seen.forEach((other, j) => {
            if (j <= i || one.contains(other) || other.contains(one)) return;
            const [a, b] = [spots[i], spots[j]];
            const e = 0.5;
            found += a.left + e < b.right && b.left + e < a.right && a.top + e < b.bottom && b.top + e < a.bottom;
          }));
          return found;
        }"""
    )
    return count


def test_boxes_unfold_on_click_and_fold_again(opened: Open) -> None:
    page = opened(deep()).page
    visible = page.locator(".network .node:visible")
    folded = visible.count()
    height = page.locator("svg.network").bounding_box()["height"]
    box = page.locator("svg.network > .box").nth(0)
    assert box.get_attribute("aria-expanded") == "false"
    box.click()
    assert box.get_attribute("aria-expanded") == "true"
    assert visible.count() > folded
    assert page.locator("svg.network").bounding_box()["height"] > height
    assert overlaps(page) == 0
    inner = box.locator(".box").first
    inner.click()
    assert inner.get_attribute("aria-expanded") == "true"
    assert box.get_attribute("aria-expanded") == "true"  # a click inside leaves the box around it open
    assert overlaps(page) == 0
    inner.locator(".layer").first.hover()
    assert "stage0.0.first.weight" in tip(page)
    box.locator(":scope > .label").click(force=True)
    assert visible.count() == folded
    assert page.locator("svg.network").bounding_box()["height"] == height


def test_boxes_unfold_by_keyboard_and_all_at_once(opened: Open) -> None:
    page = opened(deep()).page
    page.focus("svg.network > .box >> nth=1")
    page.keyboard.press("Enter")
    assert page.locator("svg.network > .box").nth(1).get_attribute("aria-expanded") == "true"
    page.keyboard.press("ArrowDown")  # into the box
    assert page.evaluate("document.activeElement.parentElement.classList.contains('inside')")
    page.click("[data-unfold]")
    assert page.locator(".network .box[aria-expanded=false]").count() == 0
    assert page.locator(".network .layer:visible").count() == 80
    assert overlaps(page) == 0
    page.click("[data-fold]")
    assert page.locator(".network .layer:visible").count() == 0


def test_unfolded_lines_meet_their_boxes(opened: Open) -> None:
    """In the outermost drawing every line still ends where a node begins, after rows have moved."""
    page = opened(deep()).page
    page.locator("svg.network > .box").nth(1).click()
    missed = page.evaluate(
        """() => {
          const svg = document.querySelector('.network');
          const tops = [...svg.querySelectorAll(':scope > .node')].map((node) => node.transform.baseVal[0].matrix.f);
          const lines = [...svg.querySelectorAll(':scope > .lines > path')];
          return lines.filter((line) => {
            const y = line.getPointAtLength(line.getTotalLength()).y;
            return !tops.some((top) => Math.abs(top - y) < 1);
          }).length;
        }"""
    )
    assert missed == 0


def test_names_cannot_do_anything(opened: Open) -> None:
    plan = chain([f"{NASTY} {i}" for i in range(70)])
    page = opened({NASTY: plan}, title=NASTY).page  # a dialog would be a complaint
    page.click("[data-unfold]")
    page.locator(".network .layer:visible").first.hover()
    assert NASTY in tip(page)
    page.fill("[data-filters]", NASTY.split()[0])
    assert page.locator(".parameters tbody tr:visible").count() > 0
    assert page.locator("h1").inner_text() == NASTY
    assert page.locator("script").count() == 3


def test_print_shows_all_rows_and_no_controls(opened: Open) -> None:
    page = opened(deep()).page
    page.emulate_media(media="print")
    assert not page.locator("[data-filters]").is_visible()
    assert not page.locator("[data-unfold]").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll.tall')).overflowY") == "visible"
    assert page.locator(".parameters tbody tr:visible").count() == 160
    assert colours(page.screenshot(full_page=True)) > 50


ON_ITS_PLACE = """() => {
  const frame = document.querySelector('.scroll.graph').getBoundingClientRect();
  const spots = [...document.querySelectorAll('.network > .node > rect, .network > .node > circle')];
  const boxes = spots.map((one) => one.getBoundingClientRect());
  const [left, right] = [Math.min(...boxes.map((b) => b.left)), Math.max(...boxes.map((b) => b.right))];
  const bottom = Math.max(...boxes.map((b) => b.bottom));
  return { used: (right - left) / frame.width, inside: left >= frame.left && right <= frame.right, frame: frame.bottom,
           bottom, columns: new Set(boxes.map((b) => Math.round(b.left + b.width / 2))).size };
}"""


def test_a_long_graph_uses_the_width_there_is(opened: Open) -> None:
    plan = chain([f"layer{place}" for place in range(24)])
    wide = opened(plan, width=1400).page
    seen = wide.evaluate(ON_ITS_PLACE)
    assert seen["columns"] > 3
    assert seen["used"] > 0.4
    assert seen["inside"]
    assert seen["bottom"] <= seen["frame"]  # nothing to scroll for
    assert overlaps(wide) == 0
    narrow = opened(plan, width=400).page
    few = narrow.evaluate(ON_ITS_PLACE)
    assert few["columns"] < seen["columns"]
    assert few["inside"]
    narrow.set_viewport_size({"width": 1400, "height": 800})
    narrow.wait_for_selector(f"[data-column='{seen['columns'] - 1}']")
    assert narrow.evaluate(ON_ITS_PLACE) == seen


def test_lines_between_columns_end_where_they_should(opened: Open) -> None:
    page = opened(chain([f"layer{place}" for place in range(24)], skip=True), width=1400).page
    missed = page.evaluate(
        """() => {
          const spots = [...document.querySelectorAll('.network > .node')].map((node) => {
            const { e, f } = node.transform.baseVal[0].matrix;
            const box = node.querySelector('rect, circle').getBBox();
            return { left: e, right: e + box.width, top: f, bottom: f + box.height };
          });
          const at = (p, side) => spots.some((s) => p.x >= s.left && p.x <= s.right && Math.abs(p.y - s[side]) < 1);
          return [...document.querySelectorAll('.network > .lines > path')].filter((line) => {
            const [from, to] = [line.getPointAtLength(0), line.getPointAtLength(line.getTotalLength())];
            return !at(from, 'bottom') || !at(to, 'top');
          }).length;
        }"""
    )
    assert missed == 0
    assert page.locator("[data-column='2']").count() > 0


def test_the_down_key_leads_through_all_columns(opened: Open) -> None:
    page = opened(chain([f"layer{place}" for place in range(24)]), width=1400).page
    page.focus(".network > .node >> nth=0")
    for place in range(24):
        page.keyboard.press("ArrowDown")
        assert tip(page).startswith(f"layer{place}\n")
    page.keyboard.press("ArrowUp")
    assert tip(page).startswith("layer22\n")


def shown_size(page: Any) -> tuple[float, float]:
    box = page.locator("svg.network").bounding_box()
    return box["width"], box["height"]


def test_buttons_and_keys_zoom(opened: Open) -> None:
    page = opened(deep(), width=1400).page
    width, height = shown_size(page)
    page.click("[data-zoom='1.25']")
    assert shown_size(page)[0] == pytest.approx(1.25 * width, abs=2)
    page.focus(".network > .box >> nth=0")
    page.keyboard.press("-")
    assert shown_size(page) == pytest.approx((width, height), abs=2)
    page.click("[data-unfold]")
    for _ in range(3):
        page.click("[data-zoom='1.25']")
    frame = page.locator(".scroll.graph")
    assert frame.evaluate("(f) => f.scrollHeight > f.clientHeight")
    page.click("[data-zoom=fit]")
    assert frame.evaluate("(f) => f.scrollHeight <= f.clientHeight && f.scrollWidth <= f.clientWidth")
    assert page.locator("[data-zoom-shown]").inner_text() != "100 %"


def test_the_wheel_zooms_at_the_pointer_with_ctrl_alone(opened: Open) -> None:
    page = opened(deep(), width=1400, height=1200).page
    page.click("[data-unfold]")
    page.click("[data-zoom='1.25']")
    page.locator(".scroll.graph").scroll_into_view_if_needed()
    frame = page.locator(".scroll.graph").bounding_box()
    page.mouse.move(frame["x"] + 500, frame["y"] + 300)

    def under() -> list[float]:
        box = page.locator("svg.network").bounding_box()
        left, top = frame["x"] + 500 - box["x"], frame["y"] + 300 - box["y"]
        return [left / box["width"], top / box["height"]]

    before, size = under(), shown_size(page)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.keyboard.up("Control")
    page.wait_for_function("(wide) => document.querySelector('.network').clientWidth > 1.5 * wide", arg=size[0])
    assert under() == pytest.approx(before, abs=0.01)
    bigger = shown_size(page)
    page.mouse.wheel(0, 50)
    assert shown_size(page) == bigger


def test_the_mouse_drags_and_a_drag_unfolds_nothing(opened: Open) -> None:
    page = opened(deep(), width=800, height=1200).page
    for _ in range(6):
        page.click("[data-zoom='1.25']")
    frame = page.locator(".scroll.graph")
    frame.evaluate("(f) => { f.scrollIntoView(); f.scrollTo(200, 100); }")
    box = page.locator("svg.network > .box >> nth=0").bounding_box()
    at = frame.bounding_box()
    x, y = max(box["x"] + 20, at["x"] + 30), max(box["y"] + 20, at["y"] + 30)
    begun = frame.evaluate("(f) => [f.scrollLeft, f.scrollTop]")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 30, y - 40, steps=4)
    page.mouse.up()
    assert frame.evaluate("(f) => [f.scrollLeft, f.scrollTop]") == [begun[0] + 30, begun[1] + 40]
    assert page.locator(".box[aria-expanded=true]").count() == 0


def test_two_fingers_zoom(opened: Open) -> None:
    page = opened(deep(), width=400).page
    page.locator(".scroll.graph").scroll_into_view_if_needed()
    frame = page.locator(".scroll.graph").bounding_box()
    width, _ = shown_size(page)
    session = page.context.new_cdp_session(page)

    def touch(kind: str, apart: float) -> None:
        middle, y = frame["x"] + frame["width"] / 2, frame["y"] + 100
        points = [{"x": middle - apart / 2, "y": y}, {"x": middle + apart / 2, "y": y}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points if apart else []})

    touch("touchStart", 60)
    for apart in (80, 100, 120):
        touch("touchMove", apart)
    touch("touchEnd", 0)
    assert shown_size(page)[0] == pytest.approx(2 * width, rel=0.02)


def test_lines_are_copied_and_the_plan_is_saved(opened: Open) -> None:
    plan = chain(["stem", NASTY.replace(".", "")])
    page = opened({"my net": plan}).page
    with page.expect_download() as started:
        page.click("[data-saves]")
    assert started.value.suggested_filename == "my-net.json"
    assert evenstep.Plan.from_json(Path(started.value.path()).read_text()) == plan
    page.click("[data-copies]")
    assert page.evaluate("getSelection().toString()").strip() == page.locator("pre code").inner_text().strip()
    page.wait_for_function("document.querySelector('[data-copies]').textContent !== 'Copy'")


def test_a_page_that_was_changed_does_nothing(browser: Any, tmp_path: Path) -> None:
    """The policy allows the page's own script and style sheet, letter by letter."""
    path = evenstep.write_report(deep(), tmp_path / "page.html")
    text = path.read_text()
    added = "<script>document.title = 'evil'</script><style>body { display: none }</style></body>"
    path.write_text(text.replace("</body>", added).replace('"use strict";', '"use strict"; document.title = "evil";'))
    context = browser.new_context()
    page = context.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(path.as_uri())
    assert page.title() != "evil"
    assert page.locator("h1").is_visible()
    assert len([text for text in refused if "Content Security Policy" in text]) == 3
    context.close()


CONTRAST = """() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
  };
  const texts = [...document.querySelectorAll('body *:not(svg *)')].filter((one) => one.getClientRects().length &&
    [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return Math.min(...texts.map((one) => {
    const [a, b] = [light(rgb(getComputedStyle(one).color)), light(ground(one))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(opened: Open, scheme: str) -> None:
    page = opened({**everything(), "study": a_record()}, scheme=scheme).page
    assert page.evaluate(CONTRAST) >= 4.5  # what the accessibility guidelines of the W3C ask for


def test_a_thousand_layers_open_and_unfold_in_proportion(opened: Open) -> None:
    def took(page: Any) -> float:
        """Return the shortest of a few times that it takes to unfold everything and fold it."""
        shortest: float = page.evaluate(
            """() => Math.min(...[1, 2, 3, 4, 5].map(() => {
              const from = performance.now();
              document.querySelector('[data-unfold]').click();
              document.querySelector('.network').getBoundingClientRect();
              document.querySelector('[data-fold]').click();
              document.querySelector('.network').getBoundingClientRect();
              return performance.now() - from;
            }))"""
        )
        return shortest

    few, many = (
        opened(chain([f"stage{i // 50}.{i}" for i in range(count)], skip=True), width=1400).page
        for count in (250, 1000)
    )
    assert many.locator("svg.network > .node").count() <= 40
    assert many.locator(".network .node:visible").count() <= 40
    assert took(many) < 10 * took(few)  # four times as many; by squares it would be 16
    many.click("[data-unfold]")
    assert many.locator(".network .layer:visible").count() == 1000
    assert many.locator(".parameters tbody tr").count() == 2000
    elements = [page.evaluate("document.querySelectorAll('*').length") for page in (few, many)]
    assert elements[1] < 4.2 * elements[0]
