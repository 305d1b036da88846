"""A real headless Chromium, driven by its DevTools protocol over one websocket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOW = "no Chromium in PATH; to run this test: sudo apt-get install --no-install-recommends chromium"
_START_S, _ANSWER_S = 60, 60


def program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@dataclass
class Tab:
    """One page. said: console messages, exceptions and log entries of level warning or error. asked: every address that was requested."""

    socket: aiohttp.ClientWebSocketResponse
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    _answers: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)

    async def listen(self) -> None:
        async for message in self.socket:
            plain = message.json()
            if "id" in plain:
                self._answers.pop(plain["id"]).set_result(plain)
            else:
                self._event(plain["method"], plain["params"])

    def _event(self, method: str, given: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.said.append(f"console: {given['args']}")
        elif method == "Runtime.exceptionThrown":
            self.said.append(f"exception: {given['exceptionDetails']}")
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.said.append(f"log: {given['entry']['text']} {given['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded.set()

    async def do(self, method: str, **given: Any) -> dict[str, Any]:
        number = len(self._answers) + getattr(self, "_last", 0) + 1
        self._last = number
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": given})
        answer = await asyncio.wait_for(self._answers[number], _ANSWER_S)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    async def js(self, expression: str) -> Any:
        """The value of the JavaScript expression in the page; a promise is awaited."""
        found = await self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def open(self, url: str, width: int, scheme: str) -> None:
        """Load the page in a window of that width, for a reader who prefers that colour scheme."""
        await self.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        await self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.loaded.clear()
        await self.do("Page.navigate", url=url)
        await asyncio.wait_for(self.loaded.wait(), _ANSWER_S)

    async def key(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def enter(self) -> None:
        await self.do("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
        await self.do("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)

    async def picture(self, path: Path) -> None:
        found = await self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def tab(executable: str) -> AsyncIterator[Tab]:
    """A fresh browser with an empty profile and one tab; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        argv = [executable, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run"]
        argv += ["--disable-gpu", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--disable-dev-shm-usage"]
        argv += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses its sandbox to root
        env = {**os.environ, "HOME": profile}
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*argv, "about:blank", stdout=quiet, stderr=quiet, env=env)
        try:
            async with aiohttp.ClientSession() as session:
                address = f"http://127.0.0.1:{await _port(Path(profile), process)}/json/new?about:blank"
                async with session.put(address) as answer:
                    socket = (await answer.json(content_type=None))["webSocketDebuggerUrl"]
                async with session.ws_connect(socket, max_msg_size=0) as connection:
                    found = Tab(connection)
                    listener = asyncio.create_task(found.listen())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await found.do(f"{domain}.enable")
                    yield found
                    listener.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _port(profile: Path, process: asyncio.subprocess.Process) -> int:
    for _ in range(_START_S * 10):
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int((profile / "DevToolsActivePort").read_text().splitlines()[0])
        assert process.returncode is None, f"Chromium ended with {process.returncode} before it listened"
        await asyncio.sleep(0.1)
    raise AssertionError(f"Chromium did not listen within {_START_S} s")


def install() -> None:
    """Make sure that there is one: Debian's package, as root. Does nothing where one is in PATH."""
    if program() is None:
        from tests.testbed.packages import install_packages

        install_packages(docker=False, extra=("chromium",))
    print(program() or HOW)


if __name__ == "__main__":
    install()
