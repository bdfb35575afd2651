"""The page, in a headless browser that is driven over a pipe."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 30.0


class Browser:
    """Chromium with one page, by the DevTools protocol: JSON documents that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        shell = f'exec "$@" 3<&{to_child} 4>&{from_child}'
        command = ["bash", "-c", shell, "bash", CHROMIUM, *options, "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._ids = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.errors: list[Any] = []
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = pages[0]["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable")

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"])
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.value(expression):
            assert time.monotonic() < end, f"{expression}: {self.value('document.body.innerText')}"
            time.sleep(0.05)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._read)
        os.close(self._write)

    def _receive(self) -> Any:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 16)
            assert data, "the browser ended"
            self._rest += data
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    browser = Browser(tmp_path / "profile")
    try:
        yield browser
    finally:
        browser.close()


def test_the_page_is_self_contained(server: Server) -> None:
    answer = server.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http://" not in answer.text
    assert "https://" not in answer.text


def test_chat_and_gauges(server: Server, browser: Browser) -> None:
    browser.call("Page.navigate", url=server.url)
    browser.wait("document.getElementById('model')?.textContent === 'tiny'")
    browser.value("document.getElementById('temperature').value = 0")
    browser.value("document.getElementById('most').value = 12")
    browser.value("document.getElementById('text').value = 'hello'")
    browser.value("document.getElementById('send').click()")
    browser.wait("document.querySelectorAll('.message').length === 2")
    browser.wait("document.getElementById('send').textContent === 'Send'")
    expected = server.talk({"role": "user", "content": "hello"}, max_tokens=12).json()["choices"][0]["message"]
    assert browser.value("document.querySelectorAll('.message')[1].textContent") == expected["content"]
    browser.wait("document.getElementById('phase').textContent === 'ready'")
    browser.wait("/^[0-9.]+$/.test(document.getElementById('rate').textContent)")
    assert browser.value("document.getElementById('kv').textContent").endswith("%")
    assert browser.value("document.getElementById('running').textContent") == "0"
    browser.value("document.getElementById('reset').click()")
    assert browser.value("document.querySelectorAll('.message').length") == 0
    assert browser.errors == []


def test_errors_are_shown(server: Server, browser: Browser) -> None:
    browser.call("Page.navigate", url=server.url)
    browser.wait("document.getElementById('model')?.textContent === 'tiny'")
    browser.value("document.getElementById('text').value = 'x'.repeat(500)")
    browser.value("document.getElementById('send').click()")
    browser.wait("document.querySelector('.error')?.textContent.includes('context length')")
