"""A headless Chromium, driven over the DevTools protocol on two pipes: nothing else to install."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
).split()


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page in one browser; `trouble` gathers errors of its console, `requests` what it loaded."""

    def __init__(self, executable: str, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self.profile = tempfile.mkdtemp(prefix="browser-")
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        self.count = 0
        self.buffer = b""
        to_browser, self.out = os.pipe()
        self.back, from_browser = os.pipe()
        log = os.open(os.path.join(self.profile, "log"), os.O_WRONLY | os.O_CREAT)
        # high numbers first: the pipes may themselves be 3 and 4
        moves = ((to_browser, 200), (from_browser, 201), (200, 3), (201, 4), (log, 1), (log, 2))
        self.pid = os.posix_spawn(
            executable,
            [executable, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, *move) for move in moves],
        )
        for end in (to_browser, from_browser, log):
            os.close(end)
        self.session: str | None = None
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.session = None
        self.call("Browser.close")
        os.waitpid(self.pid, 0)
        os.close(self.out)
        os.close(self.back)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of one command; events that arrive before it are noted."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.back], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser did not answer in time"
            chunk = os.read(self.back, 1 << 16)
            assert chunk, f"the browser ended: {Path(self.profile, 'log').read_text(errors='replace')[-2000:]}"
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        event = json.loads(message)
        self.note(event.get("method", ""), event.get("params", {}))
        return event

    def note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.trouble.append(event["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.trouble.append(event["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.trouble.append(str(event["args"]))

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Show a file at a width in a colour scheme, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri())
        deadline = time.monotonic() + self.timeout
        while not self.loaded:
            self.receive(deadline)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Path:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path
