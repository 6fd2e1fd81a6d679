"""The page in a real browser: no complaint, no request, no sideways scrolling, working zoom."""

import shutil

import pytest
from headless_chromium import Browser

from doppler.report.html import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWS = "[...document.querySelectorAll('.gantt-grid .scroll-x')]"
FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))"
TIP = "(t => t.hidden ? '' : t.textContent)(document.getElementById('tip'))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip(f"no Chromium on the path (looked for {', '.join(NAMES)})")
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("results"), report)


def _middle(browser, selector, index=0):
    browser.evaluate(
        f"document.querySelectorAll({selector!r})[{index}].scrollIntoView({{block: 'center'}})"
    )
    browser.evaluate(FRAME)  # a scroll event comes one frame later, and hides the tip
    return browser.evaluate(
        "(r => [r.left + r.width / 2, r.top + r.height / 2])"
        f"(document.querySelectorAll({selector!r})[{index}].getBoundingClientRect())"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_opens_quietly_and_fits(browser, page, width, scheme):
    browser.open(page, width, scheme=scheme)
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    size = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    scroll_width, client_width = browser.evaluate(size)
    assert scroll_width <= client_width == width
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_colours_follow_the_scheme(browser, page):
    grounds = []
    for scheme in ("light", "dark"):
        browser.open(page, 1280, scheme=scheme)
        grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]


def test_hover_tap_and_focus_show_the_op(browser, page):
    browser.open(page, 1280)
    x, y = _middle(browser, "rect.bar[data-name]", 2)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    text = browser.evaluate(TIP)
    for part in ("iteration", "core", "start", "duration", "waited"):
        assert part in text
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert browser.evaluate(TIP) == ""
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.evaluate(FRAME)
    assert browser.evaluate(TIP) == text
    browser.evaluate("document.querySelector('rect.bar[tabindex=\"0\"]').focus()")
    for key in ("ArrowRight", "ArrowDown"):
        before = browser.evaluate("document.activeElement.getAttribute('aria-label')")
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        browser.evaluate(FRAME)
        after = browser.evaluate("document.activeElement.getAttribute('aria-label')")
        assert after != before
    assert browser.evaluate(TIP).split("\n")[0] == after.split(" · ")[0]
    assert browser.complaints() == []


def test_zoom_widens_both_charts_and_scrolls_them_together(browser, page):
    browser.open(page, 1280)
    before = browser.evaluate(f"{VIEWS}.map(view => view.scrollWidth)")
    browser.evaluate("document.querySelector('[data-zoom=in]').click()")
    after = browser.evaluate(f"{VIEWS}.map(view => view.scrollWidth)")
    assert after == [2 * width for width in before]
    browser.evaluate(f"{VIEWS}[1].scrollLeft = 123")
    browser.evaluate(FRAME)
    assert browser.evaluate(f"{VIEWS}.map(view => view.scrollLeft)") == [123, 123]
    _, y = _middle(browser, "svg.gantt")
    wheel = {"type": "mouseWheel", "x": 640, "y": y, "deltaX": 0, "deltaY": -300, "modifiers": 2}
    browser.call("Input.dispatchMouseEvent", **wheel)
    browser.evaluate(FRAME)
    wheeled = browser.evaluate(f"{VIEWS}.map(view => view.scrollWidth)")
    assert wheeled[0] == wheeled[1] > after[0]
    browser.evaluate("document.querySelector('[data-zoom=all]').click()")
    assert browser.evaluate(f"{VIEWS}.map(view => view.scrollWidth)") == before
    assert browser.complaints() == []


def test_without_its_script_the_page_still_shows_everything(browser, page, tmp_path):
    whole = page.read_text("utf-8")
    still = tmp_path / "still.html"
    still.write_text(whole[: whole.index("<script>")] + "</body></html>", "utf-8")
    browser.open(still, 390)
    wide = "[...document.querySelectorAll('rect.bar')].filter(b => b.getBoundingClientRect().width)"
    assert browser.evaluate(f"{wide}.length") > 20
    assert browser.evaluate("document.querySelectorAll('.gantt .ticks text').length") >= 6
    assert browser.complaints() == []


def test_a_foreign_script_does_not_run(browser, page, tmp_path):
    whole = page.read_text("utf-8")
    bad = tmp_path / "bad.html"
    bad.write_text(whole.replace("</main>", "</main><script>window.ran = 1</script>"), "utf-8")
    browser.open(bad, 1280)
    assert browser.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in browser.complaints())
