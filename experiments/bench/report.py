"""``task=bench_report``: how large the report of a large run is, and how fast a browser opens and filters it.

The run is made up (random verdicts, noise for pictures and attention), since only its size matters. Imports
neither torch nor transformers.
"""

import base64
import io
import os
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image
from rich.console import Console

from experiments.config import Run
from experiments.evaluation.attention_log import FILE, MapResolution, finest
from experiments.metrics.yes_no import results
from experiments.report.build import build, thumbnail_name
from experiments.report.findings.yes_no import worded
from experiments.runs.directory import RunStore, open_run
from experiments.runs.saved import THUMBNAIL_QUALITY
from interp.errors import UserError

SUBSETS = (("typical", "no"), ("attack", "no"), ("over_safety", "yes"))
WORDS = ("the", "image", "shows", "a", "person", "who", "asks", "whether", "this", "request", "could", "cause", "harm")
RESPONSE_WORDS = 60
THUMBNAIL = (160, 120)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FILTERS = 20  # keystrokes and choices timed


@dataclass(frozen=True)
class ReportBench:
    """A run of ``cases`` under ``arms``, attention of ``attended`` cases in a model of ``layers`` layers."""

    cases: int = 1500
    arms: int = 8
    attended: int = 100
    layers: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cases", "arms", "layers"):
            if getattr(self, name) < 1:
                raise UserError(f"task.{name}={getattr(self, name)}: must be at least 1")
        if not 0 <= self.attended <= self.cases:
            raise UserError(f"task.attended={self.attended}: must be between 0 and task.cases={self.cases}")

    def __call__(self, run: Run) -> None:
        """Writes metrics.json of the measurement beside the made-up run, and prints it."""
        console = Console()
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            folder = store.path / "made_up"
            folder.mkdir(exist_ok=True)
            with console.status("making up a run"):
                self._write(folder)
            began = time.perf_counter()
            page = build(folder)
            measured: dict[str, Any] = {"build_s": time.perf_counter() - began, "mb": page.stat().st_size / 1e6}
            measured |= _in_browser(page, console)
            store.write_json("metrics.json", {"rows": [self._row() | measured]})
            store.finish()
        for name, value in measured.items():
            console.print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}", highlight=False)

    def _row(self) -> dict[str, Any]:
        return {"cases": self.cases, "arms": self.arms, "attended": self.attended, "layers": self.layers}

    def _write(self, folder: Path) -> None:
        rng = random.Random(self.seed)
        names = ["baseline", *(f"arm {number}" for number in range(1, self.arms))]
        lines = [self._line(rng, case, arm) for case in range(self.cases) for arm in names]
        store = RunStore(folder, io.StringIO(), resumed=False)
        (folder / "predictions.jsonl").unlink(missing_ok=True)
        store.append(lines)
        found = worded(results.evaluate(pd.DataFrame(lines), seed=0, draws=200), where="a made-up run")
        store.write_json("metrics.json", found)
        model = {"name": "made up"}
        store.write_json("environment.json", {"model": model, "benchmark": {"name": "made up", "n": self.cases}})
        (folder / "thumbnails").mkdir(exist_ok=True)
        for case in range(self.cases):
            coarse = Image.frombytes("RGB", (40, 30), rng.randbytes(40 * 30 * 3)).resize(THUMBNAIL)
            coarse.save(folder / "thumbnails" / thumbnail_name(f"case-{case:04d}"), quality=THUMBNAIL_QUALITY)
        (folder / FILE).parent.mkdir(exist_ok=True)
        store.write_json(FILE, {"note": "Made up.", "cases": dict(self._attention(rng, names[:2]))})

    def _line(self, rng: random.Random, case: int, arm: str) -> dict[str, Any]:
        subset, gold = SUBSETS[case % 3]
        margin = rng.gauss(0.5 if gold == "yes" else -0.5, 1)
        verdict = "yes" if margin > 0 else "no"
        words = " ".join(rng.choices(WORDS, k=RESPONSE_WORDS))
        return {
            "case": f"case-{case:04d}", "arm": arm, "settings": "0", "status": "answered", "verdict": verdict,
            "published_verdict": verdict, "response": f"{verdict.title()}, {words}", "margin": margin, "subset": subset,
            "scenario": f"scenario {case % 29}", "gold": gold, "cluster": f"cluster {case // 2}", "pair": None,
            "tags": {}, "text": f"Question {case}: {' '.join(rng.choices(WORDS, k=12))}?",
            "prompt": f"USER: Question {case} of {arm.partition(' ')[0]}: {words} ASSISTANT:",
        }  # fmt: skip

    def _attention(self, rng: random.Random, arms: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        resolution = finest(layers=self.layers, maps=self.attended * len(arms))
        for case in range(self.attended):
            yield f"case-{case:04d}", {arm: _block(rng, resolution, self.layers) for arm in arms}


def _block(rng: random.Random, resolution: MapResolution, layers: int) -> dict[str, Any]:
    keys, names, groups = 80, ["sink", "system", "user", "template", "generated", "image_0"], 1 + resolution.groups

    def packed(places: int) -> str:
        return base64.b64encode(rng.randbytes(resolution.tokens * layers * groups * places)).decode("ascii")

    def nested(value: Any) -> list[Any]:
        return [[[value for _ in range(groups)] for _ in range(layers)] for _ in range(resolution.tokens)]

    return {
        "tokens": ["No"] * resolution.tokens, "layers": list(range(layers)),
        "groups": [f"group {g}" for g in range(groups)],
        "keys": rng.choices(WORDS, k=keys), "segments": [2] * keys, "names": names, "grid": [resolution.cells] * 2,
        "counts": [1, 0, keys - 1, 0, resolution.tokens, resolution.cells**2],
        "masses": nested([0.1667] * len(names)), "image": packed(resolution.cells**2), "image_scale": nested(0.123456),
        "words": packed(keys), "words_scale": nested(0.123456),
    }  # fmt: skip


def chromium_path() -> str | None:
    """A Chromium on this machine: $CHROMIUM, or the first of ``BROWSERS`` on the path; None where there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def _in_browser(page: Path, console: Console) -> dict[str, Any]:
    """Seconds until the page can be used, and milliseconds of a filter; prints why where there is no browser."""
    path = chromium_path()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        console.print("not timed in a browser: that needs playwright and a Chromium on the path (or $CHROMIUM)")
        return {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page()
        began = time.perf_counter()
        tab.goto(page.as_uri())
        tab.locator(".row").first.wait_for()
        opened = time.perf_counter() - began
        times = tab.evaluate(_FILTERING, FILTERS)
        browser.close()
    first, *rest = times
    return {"open_s": opened, "first_search_ms": first, "filter_ms": statistics.median(rest), "slowest_ms": max(rest)}


# A filter's time is that of its handler and of the layout after it, in the page's own clock.
_FILTERING = """(count) => {
  const timed = (id, value, kind) => {
    const node = document.getElementById(id), began = performance.now();
    node.value = value;
    node.dispatchEvent(new Event(kind));
    void document.getElementById('rows').offsetHeight;
    return performance.now() - began;
  };
  const found = [timed('search', 'harm', 'input')];
  for (let at = 0; at < count; at += 1) {
    found.push(at % 2 ? timed('search', 'question ' + at, 'input')
      : timed('f-flip', ['any', 'fixed', 'broken', ''][(at / 2) % 4], 'change'));
  }
  return found;
}"""
