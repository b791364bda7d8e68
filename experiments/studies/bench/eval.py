"""``task=bench_eval``: cases a second of a study's answering, beside a loop that asks one case at a time.

A study asks all arms of a batch before the next one, and reads a prompt once for all of them; "arms apart" asks arm
after arm, in the same batches, and shares nothing.
With ``task.clients`` also of the server (``task=serve``), which is in this process; the clients are threads of another,
each with a connection that it keeps. The cases are IconWorld's, with files to decode and sentences of many lengths
where the model is large.

With a ``model`` behind an endpoint and ``task.twin`` it asks that endpoint instead (``endpoint.py``). Imports neither
torch nor transformers.
"""

import base64
import io
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.scene import Scene
from experiments.config import Run
from experiments.evaluation.cases import limited
from experiments.runs.resumption import open_run
from experiments.studies.bench.harness import (
    MEBIBYTE,
    Bench,
    Bound,
    Result,
    Say,
    Turns,
    child,
    peaks,
    repeat,
    runner,
    table,
    timed,
)
from experiments.types import Kind, Loaded, Sample
from interp.errors import UserError
from mitigation.controls import TextOnly
from mitigation.method import Baseline
from mitigation.prompting import ContextPrompt, SafetyPrompt
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from interp.vlm import VLM


SIDE = 672  # pixels of a file, as photographs of a benchmark have or more
FILLER = 60  # words at most in front of a sentence


@dataclass(frozen=True)
class EvalCases:
    """A benchmark of ``count`` cases of IconWorld; with ``folder``, as JPEG files in it and with words in front."""

    count: int
    folder: str | None = None
    name: str = "bench_eval"
    kind: ClassVar[Kind] = "yes_no"

    def load(self) -> Loaded:
        """The cases; files are drawn where they are not there yet."""
        loaded = IconWorld().load()
        samples = limited(loaded.samples, self.count)
        if self.folder is not None:
            samples = [_as_file(sample, Path(self.folder), number) for number, sample in enumerate(samples)]
        return loaded._replace(samples=samples)

    def development(self) -> None:
        """There is no development split."""
        return None


def _as_file(sample: Sample, folder: Path, number: int) -> Sample:
    assert isinstance(sample.image, Scene)
    path = folder / f"{number}.jpg"
    if not path.exists():
        replace(sample.image, size=SIDE).render().save(path)
    rng = random.Random(sample.id)
    words = " ".join(rng.choices(sample.prompt.split(), k=rng.randint(0, FILLER)))
    return replace(sample, image=path, prompt=f"{words} {sample.prompt}".strip())


Ask = Callable[[], tuple[float, dict[tuple[str, str], str]]]  # lets clients ask all: seconds, answers by case and arm
SIZES = ("tiny", "smol", "170m", "7b", "7b_qwen", "small", "small_qwen")
LEAST = {"cpu": 3.0, "cuda": 8.0}  # required speed-up over the loop, by device
MOST_HELD = 1.5  # times the peak of the largest arm alone, for a study of all arms
SHARED = 1.8  # required speed-up of the arms of +exp=vcd_llava over arms apart, on a GPU
LEAST_SERVED = 0.8  # required of the server, of the answers a second that a study gives to the same two arms
ARMS: dict[str, Any] = {"baseline": Baseline(), "vcd": VCD(), "prompt": ContextPrompt(), "shift": ConstantShift(0.5)}
ARM_SETS: dict[str, dict[str, Any]] = {
    "few": ARMS,
    # Those of +exp=vcd_llava, with constants in place of what is fitted.
    "vcd_llava": {
        "baseline": Baseline(),
        "vcd": VCD(noise_step=700),
        "vcd_published": VCD(),
        "text_only": TextOnly(),
        "yes_bias": ConstantShift(0.5),
        "calibrated_shift": ConstantShift(-0.5),
        "prompt": ContextPrompt(),
    },
    # Those of +exp=papers, likewise.
    "papers": {
        "baseline": Baseline(),
        "vcd_cli": VCD(),
        "text_only": TextOnly(),
        "calibrated_shift": ConstantShift(-0.5),
        "prompt": ContextPrompt(),
        "safety_prompt": SafetyPrompt(),
    },
}
SERVED_ARMS = {arm: ARMS[arm] for arm in ("baseline", "vcd")}
LOOP, APART, STUDY, UNSERVED, SERVED = "one by one", "arms apart", "study", "two arms", "two arms, served"
VARIANTS: dict[str, dict[str, Any]] = {
    APART: {"feature_cache_mib": 0, "image_workers": 0},
    "+ features": {"image_workers": 0},
    STUDY: {},
    "score": {"protocol": "score"},
}
ASKED_APART = (APART, "+ features")


@dataclass(frozen=True)
class EvalBench(Bench):
    """The task: ``cases`` under some ``arms``, in turns by every variant.

    ``few`` are four: baseline, VCD, a prompt, a shift. ``vcd_llava`` and ``papers`` are those of these experiments.
    What is said on the command line (``batch_size``, ``batch_tokens``, ``image_workers``, ``max_new_tokens``) holds for
    the study's answering. With ``memory`` the peaks of a study and of each arm alone are measured. So many ``clients``
    (0: none) also ask the server, for answers of the plain model and of VCD, beside a study of these two arms that
    shares no features.

    Where the run's model is behind an endpoint, that one is measured beside the same model here, ``twin`` (a folder,
    hub id or bundled model, in the number format ``twin_dtype``), on plain answers and three contrasts.

    Raises:
        UserError: an unknown size, numbers below 1, or a 7b size without a GPU.
    """

    size: str = "tiny"
    arms: str = "few"
    cases: int = 64
    clients: int = 0
    memory: bool = True
    twin: str | None = None
    twin_dtype: str = "auto"
    name = "eval"
    about = "answering cases in batches, beside a loop that asks one at a time"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("size", [self.size], SIZES, cases=[self.cases])
        self.check("arms", [self.arms], ARM_SETS)
        if self.clients < 0:
            raise UserError(f"task.clients={self.clients}: clients of the server; give 0 (no server) or more")

    def measure(self, run: Run, device: str, say: Say) -> Result:
        """Every way of asking in turns; or an endpoint beside its twin here."""
        if run.endpoint is not None or self.twin is not None:
            from experiments.studies.bench.endpoint import beside_endpoint

            benchmark: Any = EvalCases(self.cases)
            asked = replace(run, benchmark=benchmark, fresh=True)
            return beside_endpoint(asked, benchmark.load().samples, twin=self.twin, dtype=self.twin_dtype,
                                   repeats=self.repeats, seconds=self.seconds, say=say)  # fmt: skip
        with TemporaryDirectory() as folder:
            arms = ARM_SETS[self.arms]
            studied = next(arm for arm in arms if arm.startswith("vcd"))
            asked = replace(run, arms=arms, arm=studied, fresh=True)
            given = EvalSetting(self.size, device, self.seed, self.cases, folder, asked)
            bench = runner(AnswerTimes, given)
            held = (
                peaks(AnswerTimes, given, [self.cases], [STUDY, *arms], device, say)[self.cases] if self.memory else {}
            )
            say("measuring")
            with served(bench.run, bench.vlm, bench.loaded, self.clients) if self.clients else nullcontext() as ask:
                bench.measure(self.repeats, self.seconds, ask)
        weights, rows = bench.vlm.model.get_memory_footprint(), bench.rows()
        metrics: dict[str, Any] = {
            "dtype": str(bench.vlm.dtype).removeprefix("torch."),
            "rows": rows,
            "rounds": bench.turns.rounds,
            "weights_mib": weights / MEBIBYTE,
            "peak_mib": {name: (weights + peak) / MEBIBYTE for name, peak in held.items()},
            "prefills": bench.prefills,
            "study_over_apart": bench.turns.ratio(APART, STUDY),
            "answers_unlike_the_loop": bench.unlike(STUDY, LOOP),
            "answers_unlike_arms_apart": bench.unlike(STUDY, APART),
        }
        if self.clients:
            metrics["served_over_study"] = bench.turns.ratio(UNSERVED, SERVED)
            metrics["answers_unlike_the_study"] = bench.unlike(SERVED, UNSERVED)
        records = [
            {"asked": name, "cases/s": f"{row['cases_per_second']:.3g}", "times the loop": f"{row['times']:.2f}"}
            for name, row in rows.items()
        ]
        shown = table("A study's answering", records)
        return Result(metrics, [shown], bounds(self, metrics, device), sentences(self, metrics))


@dataclass(frozen=True)
class EvalSetting:
    """A model, cases and arms: all that a child process needs to ask the same. Files are drawn in ``folder``.

    ``folder`` is one bench's own, so that its settings are equal in every process.
    """

    size: str
    device: str
    seed: int
    cases: int
    folder: str
    run: Run = field(compare=False)


class AnswerTimes:
    """One model, its cases, and the variants of asking them; answers are by variant, of a case under an arm."""

    turns: Turns

    def __init__(self, setting: EvalSetting) -> None:
        from experiments.studies.bench.models import model_of

        files = None if setting.size in ("tiny", "smol") else setting.folder
        benchmark: Any = EvalCases(setting.cases, files)
        self.folder, self.loaded = setting.folder, benchmark.load()
        self.run = replace(setting.run, benchmark=benchmark)
        texts = [sample.prompt for sample in self.loaded.samples]
        self.vlm = model_of(setting.size, texts, device=setting.device, seed=setting.seed)
        self.device = self.vlm.device
        self.answers: dict[str, dict[tuple[str, str], str]] = {}
        self.prefills: dict[str, int] = {}  # prompts that were read, and read by another arm

    def prepare(self, case: int) -> None:
        """Opens one picture and asks it once, so that what every way of asking needs is not counted as its own."""
        self._one(Baseline(), self.loaded.samples[0])

    def once(self, variant: str, case: int) -> None:
        """All cases under all arms together, or under the arm named ``variant`` alone."""
        arms = self.run.arms if variant == STUDY else {variant: self.run.arms[variant]}
        self._study(STUDY, arms, {})

    def measure(self, repeats: int, seconds: float, ask: Ask | None) -> None:
        """Rounds of all variants, after one untimed forward (with a server: a round of it) to warm up."""
        work: dict[str, Callable[[], object]] = {LOOP: self._loop}
        work |= {name: partial(self._study, name, self.run.arms, changes) for name, changes in VARIANTS.items()}
        if ask is not None:
            work[UNSERVED] = partial(self._study, UNSERVED, SERVED_ARMS, {"feature_cache_mib": 0})
            ask()
        variants = {name: timed(one, self.vlm.device) for name, one in work.items()}
        if ask is not None:
            variants[SERVED] = partial(self._served, ask)
        self._one(Baseline(), self.loaded.samples[0])
        self.turns = Turns(variants)
        repeat([self.turns], repeats, seconds)

    def _loop(self) -> None:
        """The naive loop: open, ask, keep the text. No judge, no disk."""
        self.answers[LOOP] = {
            (sample.id, arm): self._one(method, sample)
            for arm, method in self.run.arms.items()
            for sample in self.loaded.samples
        }

    def _one(self, method: Any, sample: Sample) -> str:
        from experiments.benchmarks.images import open_image
        from interp.vlm import Prompt

        assert sample.image is not None
        prompt = Prompt(sample.prompt, open_image(sample.image), key=sample.id)
        return str(method.generate(self.vlm, [prompt], max_new_tokens=self.run.max_new_tokens).texts[0])

    def _study(self, name: str, arms: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        from experiments.evaluation.answer import Answering

        run = replace(self.run, output_root=self.folder, **changes)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            answering = Answering(run, self.vlm, store, Console(quiet=True))
            for some in [{arm: method} for arm, method in arms.items()] if name in ASKED_APART else [arms]:
                answering.answer(some, self.loaded.samples)
            if name == STUDY:
                self.prefills = answering.efficiency().get("prefills", {})
            self.answers[name] = {(line["case"], line["arm"]): line["response"] for line in store.records()}

    def _served(self, ask: Ask) -> float:
        seconds, self.answers[SERVED] = ask()
        return seconds

    def rows(self) -> dict[str, dict[str, float]]:
        """By variant: cases a second (a case under an arm is one), and how many times the loop's they are."""
        return {
            name: {
                "cases_per_second": len(self.answers[name]) / self.turns.median(name),
                "times": self.turns.ratio(LOOP, name) * len(self.answers[name]) / len(self.answers[LOOP]),
            }
            for name in self.turns.variants
        }

    def unlike(self, name: str, other: str) -> int:
        """Answers that differ between two variants; in bfloat16 a batch rounds otherwise than a row."""
        return sum(text != self.answers[other][key] for key, text in self.answers[name].items())


@contextmanager
def served(run: Run, vlm: "VLM", loaded: Loaded, clients: int) -> Iterator[Ask]:
    """A server for the plain model and VCD, and a function that lets the clients ask it all."""
    from experiments.serving import served as arms
    from experiments.serving.socket_server import bound, configured
    from experiments.serving.task import Serve

    run = replace(run, arms=SERVED_ARMS)
    server = Serve().server(run, arms.served(run), vlm)
    host = configured(server)
    names = {arm: next(name for name in server.served if ("+" in name) == (arm != "baseline")) for arm in SERVED_ARMS}
    asked = {(one.id, arm): body(one, name) for arm, name in names.items() for one in loaded.samples}
    with bound("127.0.0.1", 0) as listener, child() as other:
        thread = threading.Thread(target=host.run, kwargs={"sockets": [listener]})
        thread.start()
        port = listener.getsockname()[1]

        def ask() -> tuple[float, dict[tuple[str, str], str]]:
            seconds, answers = other.submit(ask_all, port, list(asked.values()), clients).result()
            return seconds, dict(zip(asked, answers, strict=True))

        try:
            yield ask
        finally:
            host.should_exit = True
            thread.join()
            server.waiting.close()


def body(sample: Sample, name: str) -> bytes:
    """The request that asks the case."""
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


def bounds(bench: EvalBench, metrics: Mapping[str, Any], device: str) -> list[Bound]:
    """What a study, its memory and the server are held to."""
    least = LEAST["cpu" if device == "cpu" else "cuda"]
    found = [Bound(f"{bench.size}: a study over the loop", metrics["rows"][STUDY]["times"], least, least=True)]
    if device != "cpu" and bench.arms == "vcd_llava":
        found.append(Bound(f"{bench.size}: a study over arms apart", metrics["study_over_apart"], SHARED, least=True))
    if held := dict(metrics["peak_mib"]):
        study, alone = held.pop(STUDY), max(held.values())
        found.append(Bound(f"{bench.size}: peak of a study over the largest arm's alone", study / alone, MOST_HELD))
    if (ratio := metrics.get("served_over_study")) is not None:
        found.append(Bound(f"{bench.size}: the server over a study, answers a second", ratio, LEAST_SERVED, least=True))
    return found


def sentences(bench: EvalBench, metrics: Mapping[str, Any]) -> list[str]:
    """How many answers differ, what was read once, and the peaks of memory."""
    total, read = bench.cases * len(ARM_SETS[bench.arms]), metrics["prefills"]
    lines = [
        f"{metrics['answers_unlike_the_loop']} of {total} answers unlike the loop's",
        f"{metrics['study_over_apart']:.2f} times arms apart, which share nothing: {read['prefills']:,} prompts were "
        f"read and {read['prefills_reused']:,} taken over; {metrics['answers_unlike_arms_apart']} of {total} answers "
        "unlike",
    ]
    if held := metrics["peak_mib"]:
        each = ", ".join(f"{name} {peak:,.0f}" for name, peak in held.items())
        lines.append(f"peak memory in MiB, with the weights ({metrics['weights_mib']:,.0f}): {each}")
    if "answers_unlike_the_study" in metrics:
        lines.append(f"{metrics['answers_unlike_the_study']} of the server's answers unlike the study's")
    return lines
