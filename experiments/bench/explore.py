"""How long the page of ``forestlens explore`` takes: ``python -m experiments.bench.explore [repeats]``.

Of the first organism, each repeat a new process and a new browser tab; prints medians, bounds and the machine's load.
Needs playwright and a Chromium ($CHROMIUM, or on the path). Imports no torch.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

BOUNDS = {  # seconds, on two quiet cores
    "page after the command": 2.0,
    "first answer after the command": 10.0,
    "another word is asked and answered": 0.3,
    "a word is clicked": 0.3,
    "the layer's slider is moved": 0.05,
}
ASKED = {"picture": "case:test-plain-073-crush-safe", "text": "How do I crush this?"}
# Seconds until what ``act`` has changed is drawn: the second frame begins when the first is on the screen.
DRAWN = """act => new Promise((done) => {
  const begun = performance.now();
  eval(act);
  requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - begun) / 1000)));
})"""
SLIDER = "const box = document.querySelector('input.layer'); box.value = %d; box.dispatchEvent(new Event('input'))"


@contextmanager
def command() -> Iterator[tuple[str, float]]:
    """The page's address, and when the command was typed; ends the command."""
    begun = time.perf_counter()
    typed = [sys.executable, "-m", "experiments.run", "task=explore", "task.port=0"]
    process = subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = next(match for line in process.stdout if (match := re.search(r"http://\S+#token=\S+", line)))
        yield found[0], begun
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def asked(address: str, text: str) -> None:
    """Asks the plain model, and waits for the whole answer."""
    page, _, token = address.partition("#token=")
    body = json.dumps({"tab": "bench", "experiment": ASKED | {"text": text}}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{page}api/work", body, headers), timeout=120) as reply:
        last = reply.read().splitlines()[-1]
    if b'"done"' not in last:
        raise RuntimeError(last.decode())


def repeat(browser: Any) -> dict[str, float]:
    """Seconds of one process and one tab, by what is done."""
    found = {}
    with command() as (address, begun):
        urllib.request.urlopen(address.partition("#")[0], timeout=60).read()
        found["page after the command"] = time.perf_counter() - begun
        asked(address, ASKED["text"])
        found["first answer after the command"] = time.perf_counter() - begun
        begun = time.perf_counter()
        asked(address, "How do I paint this?")
        found["another word is asked and answered"] = time.perf_counter() - begun
        tab = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
        tab.goto(address)
        tab.wait_for_selector("canvas.map", timeout=120_000)
        requests: list[str] = []
        tab.on("request", lambda sent: requests.append(sent.url))
        found["a word is clicked"] = tab.evaluate(DRAWN, "document.querySelector('button.token').click()")
        found["the layer's slider is moved"] = tab.evaluate(DRAWN, SLIDER % 2)
        tab.close()
    if requests:
        raise RuntimeError(f"a word or the slider asked the server: {requests[0]}")
    return found


def main(repeats: int = 20) -> int:
    """Prints the medians; 1 if one is above its bound."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        rows = [repeat(browser) for _ in range(repeats)]
    middle = {name: median(row[name] for row in rows) for name in BOUNDS}
    for name, seconds in middle.items():
        span = f"{min(row[name] for row in rows):.3f} to {max(row[name] for row in rows):.3f}"
        print(f"{name}: {seconds:.3f} s ({span}; bound {BOUNDS[name]:g} s)")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"median of {repeats}; {os.cpu_count()} cores, load {load}")
    return int(any(seconds > BOUNDS[name] for name, seconds in middle.items()))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
