"""The HTML report in a real browser: Chromium, headless, driven through a pipe by its own protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_config, make_group, make_passport
from test_reports_html import HOSTILE, make_figure

from mcit.reports.formats import Table
from mcit.reports.html import write_html

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: install chromium to run these"
)

PATIENCE = 60  # seconds
PHONE, DESKTOP = (360, 780), (1280, 900)
# The browser talks on descriptors 3 and 4; they are first put where they cannot be in the way.
SHIM = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab. What the page logs, throws or fetches is kept in `events`."""

    def __init__(self, home: Path):
        theirs_in, self.writing = os.pipe()
        self.reading, theirs_out = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += [
            "--no-first-run",
            "--disable-dev-shm-usage",
            f"--user-data-dir={home}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHIM, str(theirs_in), str(theirs_out), CHROMIUM, *options],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.rest, self.session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.reading], [], [], PATIENCE)[0], (
                f"the browser said nothing for {PATIENCE} s"
            )
            found = os.read(self.reading, 1 << 20)
            assert found, "the browser closed its pipe"
            self.rest += found
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def run(self, script: str) -> Any:
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, path: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        self.events.clear()
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=path.as_uri())
        until = time.monotonic() + PATIENCE
        while self.run("document.readyState + location.href") != f"complete{path.as_uri()}":
            assert time.monotonic() < until, f"{path} did not load in {PATIENCE} s"
        assert self.run("document.documentElement.dataset.ready") == "yes"

    def complaints(self) -> list[dict[str, Any]]:
        kinds = (
            "Runtime.exceptionThrown",
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Network.loadingFailed",
        )
        return [event for event in self.events if event.get("method") in kinds]

    def press(self, key: str, code: int, text: str = "") -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.writing)
            os.close(self.reading)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A report with everything: long names, many tasks, two settings, a wide table, a figure, warnings."""
    folder = tmp_path_factory.mktemp("page")
    parts = [f"cifar100[{10 * t}-{10 * t + 9}]" for t in range(10)]
    rows = [[90.0 - 4 * (t - j) for j in range(t + 1)] for t in range(10)]
    four = [[80.0], [60.0, 90.0], [70.0, 80.0, 75.0], [65.0, 70.0, 70.0, 85.0]]
    less = [[value - 12 for value in row] for row in four]
    groups = [
        make_group("ewc", [four, four]),
        make_group("a_method_with_quite_a_long_name", [less]),
    ]
    groups.append(
        make_group(
            "lwf", [rows], tasks=parts, chance=[10.0] * 10, config=make_config("lwf", ["cifar100"])
        )
    )
    header = ["method", *parts, "A_last"]
    values = ["9.5 ± 1.3 (4.1)", "80.2 ± 1.3 (–)", "", "10.0 (3.0)"]
    names = ["mas", "ewc (seed 1, with a name that is long)", "si", "lwf"]
    table = Table("comparison", "Methods", header, [["chance"] + ["5.0"] * 11])
    table.rows.extend([name, *[value] * 11] for name, value in zip(names, values, strict=True))
    warnings = [
        "recipe.epochs differs: " + "; ".join(f"{n} (a-long-label-of-a-run-{n})" for n in range(9))
    ]
    write_html(
        folder / "report.html",
        groups,
        [table],
        [make_figure(folder)],
        warnings,
        "mcit report " + "x" * 200,
    )
    return folder / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_it_opens_without_complaint_and_the_page_never_scrolls_sideways(
    browser, page, size, scheme
):
    browser.open(page, size, scheme)
    measure = (
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth, innerWidth]"
    )
    for unfold in ("", "document.getElementById('unfold').click()"):
        browser.run(unfold)
        found, inside, whole = browser.run(measure)
        assert found == inside
        assert whole == size[0]  # a phone would zoom out to show what is wider
    assert browser.run("document.querySelectorAll('details:not([open])').length") == 0
    colour = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour[4:-1].split(","))) < 3 * 64) == (scheme == "dark")
    assert browser.complaints() == []
    fetched = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e.get("method") == "Network.requestWillBeSent"
    ]
    assert set(fetched) == {page.as_uri()}


def test_a_wide_table_scrolls_inside_its_box(browser, page):
    browser.open(page, PHONE)
    box = "document.querySelector('.scroll')"
    assert browser.run(f"{box}.scrollWidth > {box}.clientWidth + 300")
    assert browser.run(f"{box}.getBoundingClientRect().right <= 360")
    # The first column stays in sight, and leaves room for the others.
    browser.run(f"{box}.scrollLeft = 400")
    left, right = browser.run(
        "(r => [r.left, r.right])(document.querySelector('.scroll tbody th').getBoundingClientRect())"
    )
    assert left >= 0
    assert right <= 180


def test_a_click_on_a_header_sorts_by_number_and_says_so(browser, page):
    browser.open(page)
    read = "[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[0].textContent.slice(0, 3))"
    head = "document.querySelectorAll('.sortable thead th')[1]"
    states = []
    for _ in range(4):
        states.append((browser.run(f"{head}.getAttribute('aria-sort')"), browser.run(read)))
        browser.run(f"{head}.querySelector('button').click()")
    assert states == [
        ("none", ["cha", "mas", "ewc", "si", "lwf"]),
        ("descending", ["cha", "ewc", "lwf", "mas", "si"]),  # 80.2, 10.0, 9.5, and a blank last
        ("ascending", ["cha", "mas", "lwf", "ewc", "si"]),
        ("none", ["cha", "mas", "ewc", "si", "lwf"]),
    ]


def test_the_keyboard_sorts_too(browser, page):
    browser.open(page)
    browser.run("document.querySelector('.sortable thead button').focus()")
    browser.press("Enter", 13, "\r")
    assert (
        browser.run("document.querySelector('.sortable thead th').getAttribute('aria-sort')")
        == "ascending"
    )
    names = browser.run(
        "[...document.querySelectorAll('.sortable tbody:last-child th')].map(e => e.textContent)"
    )
    assert names == sorted(names)


def test_light_and_dark_can_be_chosen_and_the_choice_stays(browser, page):
    browser.open(page, scheme="light")
    look = "[getComputedStyle(document.body).backgroundColor, document.getElementById('theme').textContent]"
    light = browser.run(look)
    browser.run("document.getElementById('theme').click()")
    dark = browser.run(look)
    assert light[0] != dark[0]
    assert (light[1], dark[1]) == ("Dark", "Light")
    browser.open(page, scheme="light")
    assert browser.run(look) == dark
    browser.run("document.getElementById('theme').click()")
    browser.open(page, scheme="dark")
    assert browser.run(look) == light
    browser.run("localStorage.clear()")


def test_values_appear_under_the_pointer(browser, page):
    browser.open(page)
    browser.run("document.getElementById('unfold').click()")

    def point_at(element: str) -> str | None:
        browser.run(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        # The scroll takes away what is shown, with the next frame.
        browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        x, y = browser.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getBoundingClientRect())"
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        browser.run("new Promise(done => requestAnimationFrame(done))")
        return browser.run(
            "(tip => tip.hidden ? null : tip.textContent)(document.getElementById('tip'))"
        )

    cell = point_at("document.querySelector('.matrix tbody tr:nth-child(2) td')")
    assert (
        cell
        == "vqa after nlvr2: 60.0 %; 80.0 % when learned; 25.0 % of what was above chance is lost"
    )
    total = point_at("document.querySelector('.matrix tbody .total')")
    assert total == "A_t after vqa: 80.0 %"
    dot = point_at("document.querySelectorAll('.dot.leading')[1]")
    assert dot == "ewc after nlvr2: 75.00 ± 0.00 % (2 seeds)"
    assert point_at("document.querySelector('h1')") is None


def test_the_matrix_can_be_coloured_by_score(browser, page):
    browser.open(page)
    colour = "getComputedStyle(document.querySelectorAll('.matrix tbody td')[0]).backgroundColor"
    kept = browser.run(colour)
    browser.run("document.querySelector('input[value=score]').click()")
    assert browser.run(colour) != kept


def test_all_but_configurations_and_passports_is_unfolded_for_print_and_folded_again(browser, page):
    browser.open(page)
    closed = "document.querySelectorAll('details:not([open])').length"
    before = browser.run(closed)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    sources = browser.run("document.querySelectorAll('details.source').length")
    assert before > sources > 0
    assert browser.run(closed) == sources
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(closed) == before


def test_names_that_are_scripts_do_not_run_and_what_slips_in_is_stopped(browser, tmp_path):
    tasks = [f"{number}{HOSTILE}" for number in range(2)]
    hostile = f"<img src=x onerror='window.harmed=1'>{HOSTILE}"
    about = {"config": make_config(hostile), "passport": make_passport(tasks, command=[hostile])}
    group = make_group(
        hostile,
        [[[80.0], [70.0, 60.0]]],
        tasks=tasks,
        chance=(0.0, 0.0),
        estimator=hostile,
        **about,
    )
    table = Table("t", hostile, [hostile, "b"], [[hostile, "1"], ["c", "2"]], [hostile])
    write_html(tmp_path / "report.html", [group], [table], [], [hostile], hostile)
    browser.open(tmp_path / "report.html")
    browser.run("document.getElementById('unfold').click()")
    browser.run("document.querySelectorAll('thead button').forEach(button => button.click())")
    assert browser.complaints() == []
    assert browser.run("[typeof window.harmed, document.images.length].join()") == "undefined,0"
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed=1\">')"
    )
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.harmed = 1'}))"
    )
    assert (
        browser.run("new Promise(done => setTimeout(() => done(typeof window.harmed), 100))")
        == "undefined"
    )
    assert (
        browser.run("fetch('https://example.org').then(() => 'fetched', () => 'refused')")
        == "refused"
    )
