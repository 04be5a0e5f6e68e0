"""Drive an interactive page in Chromium, by keys and mouse; print what was seen, as JSON.

Run as ``python drive.py PAGE WIDTH light|dark [SCREENSHOT]``, in a process of its own: a browser
does not share one with tests.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from PyQt6.QtCore import QEventLoop, QPoint, Qt, QTimer, QUrl
from PyQt6.QtTest import QTest
from PyQt6.QtWebEngineCore import (
    QWebEnginePage,
    QWebEngineProfile,
    QWebEngineUrlRequestInfo,
    QWebEngineUrlRequestInterceptor,
)
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

HEIGHT = 900
_STATE = """
({
  photo: document.getElementById("photo").toDataURL(),
  rows: [...document.querySelectorAll(".rows canvas")].map((tile) => tile.toDataURL()),
  strongest: [...document.querySelectorAll(".rows canvas")].map(
    (tile) => tile.classList.contains("strongest")),
  answers: [...document.querySelectorAll(".answers tbody")].map((body) => body.innerText),
  legend: document.getElementById("legend").innerText,
  curve: !document.getElementById("curve").hidden,
  angle: document.getElementById("angle").textContent,
  spoken: document.getElementById("hue").getAttribute("aria-valuetext"),
  titles: [...document.querySelectorAll("#networks h2")].map((title) => title.textContent),
  columns: new Set([...document.querySelectorAll("#networks > section")].map(
    (section) => section.getBoundingClientRect().left)).size,
  verdicts: [...document.querySelectorAll(".answer")].map((answer) => answer.textContent),
  lefts: [...document.querySelectorAll(".rolling")].map((rows) => new Set(
    [...rows.querySelectorAll("canvas")].map((tile) => tile.getBoundingClientRect().left)).size),
  labels: [...document.querySelectorAll("#examples label")].map((label) => label.title),
  focus: document.activeElement.id,
  injected: window.injected === true,
  width: [innerWidth, document.documentElement.scrollWidth],
  paper: getComputedStyle(document.body).backgroundColor,
})
"""


class Page(QWebEnginePage):
    """A page that remembers what was written to the console."""

    def __init__(self, profile: QWebEngineProfile) -> None:
        super().__init__(profile)
        self.console: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:  # noqa: N802
        self.console.append(f"{level.name}: {message} (line {line})")


class Requests(QWebEngineUrlRequestInterceptor):
    """Which addresses are asked for, but for those inside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def interceptRequest(self, info: QWebEngineUrlRequestInfo) -> None:  # noqa: N802
        if info.requestUrl().scheme() != "data":
            self.addresses.append(info.requestUrl().toString())


class Browser:
    """A window of one width, which shows a page."""

    def __init__(self, path: Path, width: int) -> None:
        self.profile = QWebEngineProfile()
        self.requests = Requests()
        self.profile.setUrlRequestInterceptor(self.requests)
        self.page = Page(self.profile)
        self.view = QWebEngineView()
        self.view.setPage(self.page)
        self.view.resize(width, HEIGHT)
        self.view.show()
        loop = QEventLoop()
        self.page.loadFinished.connect(loop.quit)
        self.page.load(QUrl.fromLocalFile(str(path.resolve())))
        loop.exec()
        self.wait(0.5)

    def wait(self, seconds: float) -> None:
        loop = QEventLoop()
        QTimer.singleShot(round(1000 * seconds), loop.quit)
        loop.exec()

    def ask(self, code: str) -> Any:
        """The value of an expression in the page."""
        loop, answers = QEventLoop(), []

        def keep(answer: Any) -> None:
            answers.append(answer)
            loop.quit()

        self.page.runJavaScript(f"JSON.stringify({code})", keep)
        loop.exec()
        if answers[0] is None:
            raise RuntimeError(f"{code} has no value; the console says {self.page.console}")
        return json.loads(answers[0])

    def state(self) -> dict[str, Any]:
        self.wait(0.3)
        return dict(self.ask(_STATE.strip()))

    def place(self, selector: str, share: float = 0.5) -> QPoint:
        """A point of an element, from its left side (0) to its right (1), half way down."""
        x, y = self.ask(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)})"
            f".getBoundingClientRect(); return [box.left + {share} * box.width, "
            "box.top + box.height / 2]; })()"
        )
        return QPoint(round(x), round(y))

    def press(self, key: Qt.Key) -> None:
        QTest.keyClick(self.view.focusProxy(), key)

    def click(self, selector: str, share: float = 0.5) -> None:
        place = self.place(selector, share)
        QTest.mouseClick(self.view.focusProxy(), Qt.MouseButton.LeftButton, pos=place)

    def drag(self, selector: str, start: float, end: float) -> None:
        target, button = self.view.focusProxy(), Qt.MouseButton.LeftButton
        QTest.mousePress(target, button, pos=self.place(selector, start))
        for step in range(1, 6):
            place = self.place(selector, start + (end - start) * step / 5)
            QTest.mouseMove(target, place)
            self.wait(0.05)
        QTest.mouseRelease(target, button, pos=self.place(selector, end))


def drive(browser: Browser) -> dict[str, dict[str, Any]]:
    """What the page shows, action by action."""
    seen = {"start": browser.state()}
    browser.ask("document.getElementById('hue').focus() ?? 0")
    for _ in range(3):
        browser.press(Qt.Key.Key_Right)
    seen["keys"] = browser.state()
    for _ in range(9):
        browser.press(Qt.Key.Key_Right)
    seen["third"] = browser.state()  # of 36 angles
    browser.press(Qt.Key.Key_Home)
    seen["home"] = browser.state()
    browser.click("#reset")
    seen["reset"] = browser.state()
    browser.drag("#hue", 0.5, 0.75)
    seen["slider"] = browser.state()
    browser.click("#reset")
    browser.drag("#photo", 0.3, 0.8)
    seen["photo"] = browser.state()
    browser.click("#reset")
    browser.click("#examples label:nth-of-type(2)")
    seen["example"] = browser.state()
    browser.click("#play")
    browser.wait(0.6)
    browser.click("#play")
    seen["play"] = browser.state()
    browser.view.resize(browser.view.width() // 2 + 200, HEIGHT)  # as a phone is turned
    seen["resized"] = browser.state()
    return seen


def main() -> None:
    page, width, theme, *screenshot = sys.argv[1:]
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    scheme = {"dark": 0, "light": 1}[theme]
    flags = f"--no-sandbox --blink-settings=preferredColorScheme={scheme}"
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = flags
    app = QApplication(sys.argv[:1])
    start = time.perf_counter()
    browser = Browser(Path(page), int(width))
    if screenshot:
        browser.ask("setStep(4) ?? 0")
        browser.view.resize(int(width), min(browser.ask("document.body.scrollHeight"), 4000))
        browser.wait(0.8)
        browser.view.grab().save(screenshot[0])
        app.quit()
        return
    seen = drive(browser)
    result = {"console": browser.page.console, "requests": browser.requests.addresses}
    print(json.dumps({**result, "seen": seen, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
