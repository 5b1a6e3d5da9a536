"""A headless Chromium, driven by the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""

import asyncio
import base64
import contextlib
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from tests.support.patience import PATIENCE
from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium")
_SECONDS = PATIENCE
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)

#: Where an element is hit; null while it is not there, or something lies over it.
_MIDDLE = """selector => {
  const element = document.querySelector(selector);
  if (!element) return null;
  element.scrollIntoView({block: 'center'});
  const box = element.getBoundingClientRect();
  const place = [box.x + box.width / 2, box.y + box.height / 2];
  const hit = document.elementFromPoint(...place);
  return element === hit || element.contains(hit) ? place : null;
}"""


class Page:
    """One tab. What went wrong in it is kept in `complaints`."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol."""
        return await self._browser.send(method, params, self._session)

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'", f"{url} is there")

    async def eval(self, expression: str) -> Any:
        """Value of an expression, which may be a promise. Raises AssertionError for one that throws."""
        found = await self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str, what: str = "") -> Any:
        """Wait until an expression is true; its value. An element is none: ask for something of it."""
        try:
            async with asyncio.timeout(_SECONDS):
                while True:
                    with contextlib.suppress(AssertionError):
                        if value := await self.eval(expression):
                            return value
                    await asyncio.sleep(0.03)
        except TimeoutError:
            text = await self.eval("document.body.innerText")
            raise AssertionError(
                f"never: {what or expression}; {self.complaints}; the page: {text[:1500]}"
            ) from None

    async def text(self, selector: str) -> str:
        return str(await self.eval(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def count(self, selector: str) -> int:
        return int(await self.eval(f"document.querySelectorAll({json.dumps(selector)}).length"))

    async def click(self, selector: str) -> None:
        """A real click in the middle of an element, which must be the one that is hit."""
        place = await self.until(
            f"({_MIDDLE})({json.dumps(selector)})", f"{selector} can be clicked"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.send(
                "Input.dispatchMouseEvent",
                type=kind, x=place[0], y=place[1], button="left", clickCount=1,
            )  # fmt: skip

    async def fill(self, selector: str, text: str) -> None:
        """Type into a field, in place of what is in it."""
        await self.until(
            f"document.querySelector({json.dumps(selector)}) !== null", f"{selector} is there"
        )
        await self.eval(
            f"(e => {{ e.focus(); e.select?.(); }})(document.querySelector({json.dumps(selector)}))"
        )
        await self.send("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """A key by its name: Enter, Tab, Escape, ArrowLeft, ..."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    async def looks(
        self, width: int, height: int, *, dark: bool = False, still: bool = True
    ) -> None:
        """The size of its window, its colours, and whether its reader wants no motion."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def picture(self, *, whole: bool = False) -> bytes:
        """A screenshot as PNG."""
        found = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def note(self, method: str, params: dict[str, Any]) -> None:
        """An event of the tab."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(str(details.get("exception", details).get("description")))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str([arg.get("value") for arg in params["args"]]))


class Browser:
    """One process, with as many tabs as are wanted."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reading = asyncio.create_task(self._read())

    async def page(self) -> Page:
        """A new tab, that shares nothing with the others."""
        context = await self.send("Target.createBrowserContext", {})
        target = await self.send(
            "Target.createTarget", {"url": "about:blank", **context, "width": 1280, "height": 800}
        )
        attached = await self.send(
            "Target.attachToTarget", {"targetId": target["targetId"], "flatten": True}
        )
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        return page

    async def send(
        self, method: str, params: dict[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        await self._socket.send(
            json.dumps({**message, "sessionId": session} if session else message)
        )
        async with asyncio.timeout(_SECONDS):
            return await future

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            if "id" in message:
                future = self._waiting.pop(message["id"])
                if future.done():
                    continue
                if "error" in message:
                    future.set_exception(AssertionError(message["error"]))
                else:
                    future.set_result(message["result"])
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                page.note(message["method"], message["params"])


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Runs until the block ends."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        draining = None
        try:
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE):
                while not (
                    found := re.search(rb"ws://\S+", line := await process.stderr.readline())
                ):
                    assert line, "it ended at once"
            draining = asyncio.create_task(_drain(process.stderr))
            async with connect(found[0].decode(), max_size=None, proxy=None) as socket:
                browser = Browser(socket)
                try:
                    yield browser
                finally:
                    await browser.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if draining is not None:
                await draining


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass
