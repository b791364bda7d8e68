"""What ``task=gpu_report`` reads from each step's results, and the bounds that numbers are held to.

Imports neither torch nor transformers.
"""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.bench.eval import LEAST
from experiments.bench.vcd import BOUNDS
from interp.errors import UserError

RECORDING = 1.10  # times a plain forward, at each length
KERNEL_ERROR = 1e-4  # of the Triton kernel and torch.compile from eager torch, in logits
PLANNED = 0.15  # of the measured peak, that an estimate may be off
PAIRED = {(bound.items): bound.limit for bound in BOUNDS if bound.size == "7b"}


@dataclass(frozen=True)
class Reading:
    """A number: what it is, its value in words, its bound in words and whether it is met (None: it has none)."""

    what: str
    value: str
    bound: str = ""
    met: bool | None = None

    def as_record(self) -> dict[str, Any]:
        """For metrics.json."""
        return asdict(self)


def at_most(what: str, value: float, limit: float, *, unit: str = "×", digits: int = 2) -> Reading:
    """A number that must not be above ``limit``."""
    return Reading(what, f"{value:.{digits}f} {unit}".strip(), f"≤ {limit:.{digits}f} {unit}".strip(), value <= limit)


def metrics_of(folder: Path) -> dict[str, Any]:
    """The metrics.json of the one run below ``folder``.

    Raises:
        FileNotFoundError: the run wrote none.
    """
    found = sorted(folder.glob("*/*/metrics.json"))
    if not found:
        raise FileNotFoundError(f"no metrics.json below {folder}")
    return dict(json.loads(found[-1].read_text(encoding="utf-8")))


def read_tests(report: Path) -> Callable[[Path], list[Reading]]:
    """From pytest's XML; a step whose tests all skipped has shown nothing, and fails."""

    def read(log: Path) -> list[Reading]:
        root = ElementTree.parse(report).getroot()  # written by our own pytest
        (suite,) = root.iter("testsuite")
        total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        wrong = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        names = [case.get("name", "") for case in root.iter("testcase") if case.find("failure") is not None]
        ran = total - skipped
        if not ran:
            raise UserError(f"all of {total} tests skipped")
        failed = f"; failed: {', '.join(names)}" if names else ""
        return [
            Reading(f"tests marked gpu, {skipped} skipped{failed}", f"{ran - wrong} of {ran} pass", "all", not wrong)
        ]

    return read


def read_kernels(folder: Path) -> Callable[[Path], list[Reading]]:
    """Times of eager torch, ``torch.compile`` and Triton, and how far their scores are apart."""

    def read(log: Path) -> list[Reading]:
        found = []
        for row in metrics_of(folder)["rows"]:
            case = f"{row['rows']} rows × {row['vocabulary']}{', Gumbel' if row['gumbel'] else ''}"
            times = f"{row['torch_us']:.1f} / {row['compile_us']:.1f} / {row['triton_us']:.1f} µs"
            found.append(Reading(f"{case}: torch / compile / Triton", times))
        worst = max(row["largest_error"] for row in metrics_of(folder)["rows"])
        said = f"{worst:.1e}"
        return [
            *found,
            Reading("largest error from eager torch, logits", said, f"≤ {KERNEL_ERROR:.0e}", worst <= KERNEL_ERROR),
        ]

    return read


def read_attention(folder: Path) -> Callable[[Path], list[Reading]]:
    """Recording against a plain forward, at each length."""

    def read(log: Path) -> list[Reading]:
        found = []
        for row in metrics_of(folder)["rows"]:
            tokens = row["tokens"]
            found.append(
                at_most(f"recording all masses over plain, {tokens} tokens", row["mass_over_native"], RECORDING)
            )
            found.append(Reading(f"with maps of 8 queries, {tokens} tokens", f"{row['maps_over_native']:.2f} ×"))
            found.append(Reading(f"eager attention over recording, {tokens} tokens", f"{row['eager_over_mass']:.1f} ×"))
        return found

    return read


def read_vcd(folder: Path) -> Callable[[Path], list[Reading]]:
    """Contrastive decoding over plain decoding: later tokens, and the first one."""

    def read(log: Path) -> list[Reading]:
        metrics = metrics_of(folder)
        found = []
        for row, details in zip(metrics["rows"], metrics["details"], strict=True):
            case = f"{row['items']} item{'s' * (row['items'] > 1)}"
            paired = f"paired over plain, a token, {case}"
            value, limit = row["paired_over_plain"], PAIRED.get(row["items"])
            found.append(Reading(paired, f"{value:.2f} ×") if limit is None else at_most(paired, value, limit))
            for name in ("lazy", "sequential", "two_forward"):
                said = name.replace("_", "-")
                found.append(Reading(f"{said} over plain, a token, {case}", f"{row[f'{name}_over_plain']:.2f} ×"))
            first = details["first_token_over_plain"]
            words = ", ".join(f"{name.replace('_', '-')} {first[name]:.2f}" for name in first if name != "plain")
            found.append(Reading(f"first token over plain's, {case}", f"{words} ×"))
        return found

    return read


def read_eval(folder: Path) -> Callable[[Path], list[Reading]]:
    """Cases a second over the loop's, held to the bound of a GPU."""

    def read(log: Path) -> list[Reading]:
        metrics = metrics_of(folder)
        times, least = metrics["bound"]["times"], LEAST["cuda"]
        rate = metrics["rows"]["study"]["cases_per_second"]
        found = [
            Reading("evaluation over the batch-of-one loop", f"{times:.1f} ×", f"≥ {least:.0f} ×", times >= least),
            Reading("cases a second", f"{rate:.1f}"),
        ]
        peak = metrics["peak_mib"]
        return found if peak is None else [*found, Reading("peak memory of the study", f"{peak / 1024:.1f} GiB")]

    return read


def read_measured(path: Path) -> Callable[[Path], list[Reading]]:
    """From the readings that a step of ``experiments.bench.gpu_measures`` wrote itself."""

    def read(log: Path) -> list[Reading]:
        return [Reading(**record) for record in json.loads(path.read_text(encoding="utf-8"))]

    return read


def planned(steps: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps of a plan.json that are answers of the baseline or VCD, and fit."""
    return [
        outcome
        for outcome in steps["outcomes"]
        if outcome["rows"] and outcome["step"] in ("answers: baseline", "answers: vcd")
    ]
