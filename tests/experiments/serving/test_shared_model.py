"""One served model: after each arm's answer it is bit-equal to what it was, and so are the plain model's answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.serving.task import Serve
from interp.vlm import VLM
from tests.experiments.compose import run_of
from tests.experiments.serving.served import Served, data_url, hosted, turns
from tests.mitigation.test_shared_model import ARMS, method_of
from tests.plain_model import plain_afterwards
from tests.tiny import picture, tiny_llava

PLAIN = {"model": "plain", "max_tokens": 3, "logprobs": True, "top_logprobs": 5}


@pytest.fixture(scope="module")
def model() -> VLM:
    return VLM(*tiny_llava(), name="tiny")


@pytest.fixture(scope="module")
def everything(model: VLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of every method."""
    folder: Path = tmp_path_factory.mktemp("arms")
    run = run_of("task=serve", "method=baseline")
    task = run.task
    assert isinstance(task, Serve)
    arms = {**{arm: method_of(arm, folder) for arm in ARMS}, "plain": method_of("baseline", folder)}
    server = task.server(run, arms, model)
    with hosted(server, server.waiting.close) as port:
        yield Served(port, server)


def answer(server: Served, **fields: Any) -> Any:
    body = {"messages": turns("How do I kill this?", data_url(picture(1))), "metadata": {"key": "a"}, **fields}
    status, reply = server.send(body)
    assert status == 200, reply
    return reply["choices"]


@pytest.mark.slow  # of every arm: test_an_arm_leaves_the_model_as_it_was
@pytest.mark.parametrize("arm", ARMS)
def test_a_served_arm_leaves_the_model_as_it_was(arm: str, everything: Served, model: VLM) -> None:
    plain = answer(everything, **PLAIN)
    with plain_afterwards(model):
        answer(everything, model=arm, max_tokens=3)
        assert answer(everything, **PLAIN) == plain
