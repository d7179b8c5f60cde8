"""The HTML report in a real browser: headless Chromium, driven through a pipe."""

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
from report_runs import make_config, make_run
from test_reports_page import HOSTILE, make_figure

from mcit.files import write_text
from mcit.reports.caveats import Caveat
from mcit.reports.formats import Cell, Column, Note, Row, Table, TableKind
from mcit.reports.groups import group_runs
from mcit.reports.page import Report, make_page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: install chromium to run these"
)

PATIENCE = 60  # seconds
PHONE = (390, 844)
DESKTOP = (1280, 860)
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
    """Write a report with long names, many tasks, two settings, a wide table and caveats."""
    folder = tmp_path_factory.mktemp("page")
    parts = [f"cifar100[{10 * t}-{10 * t + 9}]" for t in range(10)]
    long_rows = [[90.0 - 4 * (t - j) for j in range(t + 1)] for t in range(10)]
    four = [[80.0], [60.0, 90.0], [70.0, 80.0, 75.0], [65.0, 70.0, 70.0, 85.0]]
    less = [[value - 12 for value in row] for row in four]
    runs = [make_run("ewc", four, 1), make_run("ewc", four, 2)]
    runs.append(make_run("a_method_with_quite_a_long_name", less))
    config = make_config("lwf", ["cifar100"])
    runs.append(make_run("lwf", long_rows, config=config, tasks=parts, chance=[10.0] * 10))
    columns = [Column("method"), *map(Column, parts), Column("A_last")]
    cells = {
        "mas": Cell(9.5, 1.3, 4.1),
        "ewc (seed 1, with a name that is long)": Cell(80.2, 1.3),
        "si": None,
        "lwf": Cell(10.0, lost=3.0),
    }
    rows = [Row("chance", [Cell(5.0)] * 11, reference=True)]
    rows += [Row(name, [cell] * 11) for name, cell in cells.items()]
    table = Table(TableKind.COMPARISON, "comparison", "Methods", columns, rows)
    names = "; ".join(f"{n} (a-long-label-of-a-run-{n})" for n in range(9))
    groups = group_runs(runs)
    figures = [make_figure(folder, opens=groups[0].setting.name), make_figure(folder)]
    caveats = [Caveat(f"recipe.epochs differs: {names}")]
    command = "mcit report " + "x" * 200
    report = Report(groups, [table], figures, caveats, command, folder)
    write_text(folder / "report.html", make_page(report))
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
    for unfold in ("", "document.querySelectorAll('details').forEach(fold => fold.open = true)"):
        browser.run(unfold)
        found, inside, whole = browser.run(measure)
        assert found == inside
        # a phone would zoom out to show what is wider
        assert whole == size[0]
    color = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, color[4:-1].split(","))) < 3 * 64) == (scheme == "dark")
    assert browser.complaints() == []
    fetched = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e.get("method") == "Network.requestWillBeSent"
    ]
    assert {url.partition(",")[0] for url in fetched} <= {
        page.as_uri(),
        "data:image/svg+xml;base64",
    }


@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_the_answer_is_on_the_first_screen(browser, page, size):
    browser.open(page, size)
    bottom = browser.run("document.querySelector('h1').getBoundingClientRect().bottom")
    assert 0 < bottom < size[1]


def test_a_wide_table_scrolls_inside_its_box(browser, page):
    browser.open(page, PHONE)
    box = "document.querySelector('.scroll')"
    assert browser.run(f"{box}.scrollWidth > {box}.clientWidth + 300")
    assert browser.run(f"{box}.getBoundingClientRect().right <= 390")
    # the first column stays in sight, and leaves room for the others
    browser.run(f"{box}.scrollLeft = 400")
    cell = "document.querySelector('.scroll tbody th').getBoundingClientRect()"
    left, right = browser.run(f"(r => [r.left, r.right])({cell})")
    assert left >= 0
    assert right <= 195


def test_a_click_on_a_header_sorts_by_number_and_says_so(browser, page):
    browser.open(page)
    rows = "[...document.querySelectorAll('.sortable tbody tr')]"
    read = f"{rows}.map(row => row.cells[0].textContent.slice(0, 3))"
    head = "document.querySelectorAll('.sortable thead th')[1]"
    states = []
    for _ in range(3):
        states.append((browser.run(f"{head}.getAttribute('aria-sort')"), browser.run(read)))
        browser.run(f"{head}.querySelector('button').click()")
    assert states == [
        (None, ["cha", "mas", "ewc", "si", "lwf"]),
        # 80.2, 10.0, 9.5, and a blank last
        ("descending", ["cha", "ewc", "lwf", "mas", "si"]),
        ("ascending", ["cha", "mas", "lwf", "ewc", "si"]),
    ]


def test_the_keyboard_sorts_too(browser, page):
    browser.open(page)
    browser.run("document.querySelector('.sortable thead button').focus()")
    browser.press("Enter", 13, "\r")
    names = browser.run(
        "[...document.querySelectorAll('.sortable tbody:last-child th')].map(e => e.textContent)"
    )
    assert names == sorted(names, reverse=True)


def test_everything_is_unfolded_for_print(browser, page):
    browser.open(page)
    closed = "document.querySelectorAll('details:not([open])').length"
    assert browser.run(closed) > 0
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(closed) == 0


def test_names_that_are_scripts_do_not_run_and_what_slips_in_is_stopped(browser, tmp_path):
    tasks = [f"{number}{HOSTILE}" for number in range(2)]
    hostile = f"<img src=x onerror='window.harmed=1'>{HOSTILE}"
    run = make_run(
        hostile,
        [[80.0], [70.0, 60.0]],
        config=make_config(hostile),
        provenance={"command": [hostile]},
        tasks=tasks,
        chance=(0.0, 0.0),
        estimator=hostile,
    )
    rows = [Row(hostile, [Cell(1.0)]), Row("c", [Cell(2.0)])]
    columns = [Column(hostile), Column("b")]
    table = Table(TableKind.COMPARISON, "t", hostile, columns, rows, [Note(hostile)])
    report = Report(group_runs([run]), [table], [], [Caveat(hostile)], hostile, tmp_path)
    write_text(tmp_path / "report.html", make_page(report))
    browser.open(tmp_path / "report.html")
    browser.run("document.querySelectorAll('thead button').forEach(button => button.click())")
    assert browser.complaints() == []
    assert browser.run("[typeof window.harmed, document.images.length].join()") == "undefined,0"
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed=1\">')"
    )
    browser.run(
        "document.body.append(Object.assign("
        "document.createElement('script'), {text: 'window.harmed = 1'}))"
    )
    wait = "new Promise(done => setTimeout(() => done(typeof window.harmed), 100))"
    assert browser.run(wait) == "undefined"
    fetch = "fetch('https://example.org').then(() => 'fetched', () => 'refused')"
    assert browser.run(fetch) == "refused"
