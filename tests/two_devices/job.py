"""Runs cells on two pretended devices, in a process of its own, and prints a line of JSON for each.

``python -m tests.two_devices.job <family> <kind>``: one of ``KINDS``. Neither device has float64, as Apple's MPS has
none.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from interp.errors import UserError
from interp.vlm import VLM
from tests.families import FAMILIES
from tests.two_devices.cells import CELLS
from tests.two_devices.device import Unsupported, world
from tests.two_devices.models import asked, on_two_devices, seven_billion

CLOSE = 2e-4  # attention by another kernel than the CPU's rounds otherwise


def found(name: str, vlm: VLM, side: int) -> Any:
    """What a cell answers, or the sentence with which it is refused."""
    try:
        return CELLS[name](vlm, asked(side))
    except UserError as error:
        return f"{type(error).__name__}: {error}"


def numbers(value: Any) -> Iterator[np.ndarray]:
    """All numbers of an answer, in order."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from numbers(one)
    elif value is not None:
        yield np.asarray(value.detach().float() if hasattr(value, "detach") else value)


def difference(one: Any, other: Any) -> str:
    """How two answers differ, "" if they do not."""
    if isinstance(one, str) or isinstance(other, str):
        return "" if one == other else f"{other} against {one} on the CPU"
    for here, there in zip(numbers(one), numbers(other), strict=True):
        if not np.allclose(here, there, atol=CLOSE, rtol=CLOSE, equal_nan=True):
            return f"another answer than on the CPU, off by up to {np.nanmax(np.abs(here - there)):.2g}"
    return ""


def told(kind: str, name: str, run: Any) -> None:
    """Prints what became of a cell; ``run`` returns what is wrong with it."""
    start, error, trace = time.process_time(), "", ""
    try:
        error = run()
    except Exception as raised:
        error, trace = f"{type(raised).__name__}: {raised}".splitlines()[0], traceback.format_exc(limit=-8)[:4000]
    seconds = round(time.process_time() - start, 2)
    print(json.dumps({"kind": kind, "cell": name, "error": error, "seconds": seconds, "trace": trace}), flush=True)


def shapes(family: str, *, kind: str = "shapes", head: int = 1) -> None:
    """Every cell on the family's model of seven billion parameters, without values."""
    with world(float64=False):
        vlm = on_two_devices(seven_billion(family), head=head)
        for name in CELLS:
            told(kind, name, lambda name=name: refusal(found(name, vlm, 336)))


def head_first(family: str) -> None:
    """The same with the head on the first device, as a head is that shares its weights with the embeddings."""
    shapes(family, kind="head_first", head=0)


def refusal(answer: Any) -> str:
    """The sentence, where it is one."""
    return answer if isinstance(answer, str) else ""


def values(family: str) -> None:
    """Every cell on the family's small model, on two devices and on the CPU: the same answers."""
    plain = VLM(*FAMILIES[family](), name=family)
    expected = {name: found(name, plain, 64) for name in CELLS}
    with world(values=True, float64=False):
        vlm = on_two_devices(VLM(*FAMILIES[family](), name=family))
        for name, answer in expected.items():
            told("values", name, lambda name=name, answer=answer: difference(answer, found(name, vlm, 64)))


KINDS: dict[str, Callable[[str], None]] = {"shapes": shapes, "head_first": head_first, "values": values}


if __name__ == "__main__":
    try:
        KINDS[sys.argv[2]](sys.argv[1])
    except Unsupported as error:
        print(json.dumps({"unsupported": str(error)}))
