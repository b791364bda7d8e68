"""One server of the organism for the tests of a module: VCD, prior correction and the plain model."""

from collections.abc import Iterator

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.types import Sample
from interp.vlm import VLM
from tests.experiments.compose import run_of
from tests.experiments.serving.served import Served, running
from tests.tiny import tiny_llava


@pytest.fixture(scope="package")
def cases() -> list[Sample]:
    return [sample for sample in IconWorld().load().samples if sample.subset != "control"][::7][:24]


@pytest.fixture(scope="module")
def server(organism: VLM) -> Iterator[Served]:
    run = run_of("task=serve", "method=vcd", "+method@arms.prior=prior_correction", "task.megapixels=2", "seed=3")
    with running(run, organism) as found:
        yield found


@pytest.fixture(scope="module")
def talker() -> Iterator[Served]:
    """A server of a tiny random model, whose answers are long: words in no order, until their tokens run out."""
    run = run_of("task=serve", "method=vcd")
    with running(run, VLM(*tiny_llava(), name="tiny")) as found:
        yield found
