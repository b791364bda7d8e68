"""``task=bench_serve``: answers a second of the server with several clients, beside a study's own answering.

The server and the model are in this process, as with ``task=serve``; the clients are threads of another, each with a
connection that it keeps. Imports neither torch nor transformers.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.bench.eval import SIZES, EvalCases
from experiments.bench.harness import Child, Turns, check_budget, check_size, load_average, machine, result_of, timed
from experiments.config import Run
from experiments.report.table import Table, terminal
from experiments.runs.directory import open_run
from experiments.serving.served import served
from experiments.serving.task import Serve, bound, configured
from experiments.types import Loaded, Sample
from mitigation.method import Baseline
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from interp.vlm import VLM

ARMS: dict[str, Any] = {"baseline": Baseline(), "vcd": VCD()}
LEAST = 0.8  # of the study's answers a second


@dataclass(frozen=True)
class ServeBench:
    """The task: ``cases`` under the plain model and VCD, asked by ``clients`` and by a study, in turns.

    Raises:
        UserError: an unknown size or device, numbers below 1, or a 7b size without a GPU.
    """

    size: str = "tiny"
    cases: int = 96
    clients: int = 16
    repeats: int = 5
    seconds: float = 120.0
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        check_size(self.size, SIZES, self.device, cases=self.cases, clients=self.clients)
        check_budget(self.repeats, self.seconds, self.device)

    def __call__(self, run: Run) -> None:
        """Measures, writes ``metrics.json`` into a new run directory, prints the table."""
        from experiments.bench.models import model_of
        from interp.checkpoints.load import resolve_device

        console, device = Console(), str(resolve_device(self.device))
        with (
            open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store,
            TemporaryDirectory() as folder,
        ):
            benchmark: Any = EvalCases(self.cases, None if self.size == "tiny" else folder)
            loaded = benchmark.load()
            given = replace(run, benchmark=benchmark, arms=ARMS, arm="vcd", fresh=True, output_root=folder)
            vlm = model_of(self.size, [sample.prompt for sample in loaded.samples], device=device, seed=self.seed)
            busy = load_average()
            console.print(f"run {store.path}\n{self.cases} cases under {len(ARMS)} arms, {self.clients} clients")
            with console.status("measuring"), ServeTimes(given, vlm, loaded, self.clients) as bench:
                bench.measure(self.repeats, self.seconds)
            result: dict[str, Any] = {
                "benchmark": "serve",
                "size": self.size,
                "cases": self.cases,
                "clients": self.clients,
                "environment": machine(device, busy) | {"dtype": str(vlm.dtype).removeprefix("torch.")},
                "rows": bench.rows(),
                "seconds": bench.turns.rounds,
                "unlike": bench.unlike(),
                "least": LEAST,
            }
            store.write_json("metrics.json", result)
            console.print(terminal(table(result["rows"])))
            console.print(*sentences(result), sep="\n", highlight=False)


@dataclass
class ServeTimes:
    """One model and its cases, asked both ways; a context manager, in which the server runs."""

    run: Run
    vlm: "VLM"
    loaded: Loaded
    clients: int
    answers: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # by arm and way, in the order of cases
    turns: Turns = field(init=False)

    def __enter__(self) -> "ServeTimes":
        self._server = Serve().server(self.run, served(self.run), self.vlm)
        self._listener = bound("127.0.0.1", 0)
        self._host = configured(self._server)
        self._thread = threading.Thread(target=self._host.run, kwargs={"sockets": [self._listener]})
        self._thread.start()
        self._child = Child().__enter__()
        variants: dict[str, Callable[[], float]] = {}
        for arm in ARMS:
            variants[f"{arm}, study"] = timed(lambda arm=arm: self._studied(arm))  # type: ignore[misc]
            variants[f"{arm}, server"] = self._asked(arm)
        self.turns = Turns(variants)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.__exit__(None, None, None)
        self._host.should_exit = True
        self._thread.join()
        self._server.waiting.close()
        self._listener.close()

    def measure(self, repeats: int, seconds: float) -> None:
        """A round to warm up, which is not kept, then rounds as time allows."""
        began = time.monotonic()
        self.turns.run()
        self.turns.rounds.clear()
        while not self.turns.rounds or (
            len(self.turns.rounds) < repeats and time.monotonic() - began + self.turns.cost() <= seconds
        ):
            self.turns.run()

    def _studied(self, arm: str) -> None:
        from experiments.evaluation.answer import Answering

        run = replace(self.run, feature_cache_mib=0)  # one arm alone shares no features
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            answering = Answering(run, self.vlm, store, Console(quiet=True))
            answering.answer(arm, ARMS[arm], self.loaded.samples, self.loaded.manifest)
            found = {line["case"]: line["response"] for line in store.records()}
        self.answers[arm, "study"] = [found[sample.id] for sample in self.loaded.samples]

    def _asked(self, arm: str) -> Callable[[], float]:
        name = next(name for name in self._server.served if ("+" in name) == (arm != "baseline"))
        bodies = [body(sample, name) for sample in self.loaded.samples]
        port = self._listener.getsockname()[1]

        def seconds() -> float:
            waiting = self._child.submit(ask_all, port, bodies, self.clients)
            took, self.answers[arm, "server"] = result_of(waiting, "the clients' process ended; try again")
            return took

        return seconds

    def rows(self) -> dict[str, dict[str, float]]:
        """By arm: answers a second both ways, and the server's over the study's."""
        count = len(self.loaded.samples)
        return {
            arm: {
                "study": count / self.turns.median(f"{arm}, study"),
                "server": count / self.turns.median(f"{arm}, server"),
                "ratio": 1 / self.turns.ratio(f"{arm}, server", f"{arm}, study"),
            }
            for arm in ARMS
        }

    def unlike(self) -> int:
        """Answers of the server that differ from the study's."""
        pairs = [zip(self.answers[arm, "study"], self.answers[arm, "server"], strict=True) for arm in ARMS]
        return sum(one != other for pair in pairs for one, other in pair)


def body(sample: Sample, name: str) -> bytes:
    """The request that asks the case."""
    import base64
    import io

    from experiments.benchmarks.images import open_image

    assert sample.image is not None
    kind, buffer = "png", io.BytesIO()
    if isinstance(sample.image, Path):
        kind, data = "jpeg", sample.image.read_bytes()
    else:
        open_image(sample.image).save(buffer, "PNG")
        data = buffer.getvalue()
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": sample.prompt}]
    turn = {"role": "user", "content": parts}
    return json.dumps({"model": name, "messages": [turn], "metadata": {"key": sample.id}}).encode()


def ask_all(port: int, bodies: Sequence[bytes], clients: int) -> tuple[float, list[str]]:
    """Seconds that ``clients`` take to ask it all, each one request after the other; and the answers."""
    local = threading.local()

    def ask(body: bytes) -> str:
        if not hasattr(local, "connection"):
            local.connection = HTTPConnection("127.0.0.1", port, timeout=600)
        local.connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        return str(json.loads(local.connection.getresponse().read())["choices"][0]["message"]["content"])

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(ask, bodies))
    return time.perf_counter() - start, answers


def table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """A row per arm."""
    records = [
        {"arm": arm, "study": f"{row['study']:.3g}", "server": f"{row['server']:.3g}", "ratio": f"{row['ratio']:.2f}"}
        for arm, row in rows.items()
    ]  # fmt: skip
    return Table.of("Answers a second", records)


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Whether the bound is met, and how many answers differ."""
    said = [
        f"{arm}: the server gives {row['ratio']:.2f} of the study's answers a second, at least {LEAST} wanted: "
        f"{'kept' if row['ratio'] >= LEAST else 'missed'}"
        for arm, row in result["rows"].items()
    ]
    return [*said, f"{result['unlike']} of {result['cases'] * len(ARMS)} answers unlike the study's"]
