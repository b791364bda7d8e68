"""``inspect eval`` against the server, end to end. Skips where inspect_ai is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.benchmarks.images import pixel_digest
from experiments.types import Sample
from interp.vlm import VLM, Prompt
from tests.experiments.serving.served import Served, data_url

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText
from inspect_ai.scorer import match

CASES = {cases!r}

@task
def icons():
    samples = [
        Sample(id=id, target=target, input=[ChatMessageUser(content=[ContentImage(image=url), ContentText(text=text)])])
        for id, text, url, target in CASES
    ]
    return Task(dataset=samples, scorer=match(location="begin"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava_organism+vcd", "llava_organism"])
def test_inspect_evaluates_the_mitigated_model(
    server: Served, organism: VLM, cases: list[Sample], tmp_path: Path, name: str
) -> None:
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed; it does not fit beside constraints.txt")
    from inspect_ai.log import read_eval_log

    pictures = [case.image.render() for case in cases]  # type: ignore[union-attr]
    rows = [
        (case.id, case.prompt, data_url(picture), case.gold.title())
        for case, picture in zip(cases, pictures, strict=True)
    ]
    (tmp_path / "task.py").write_text(TASK.format(cases=rows))
    command = [
        sys.executable, "-m", "inspect_ai", "eval", "task.py", "--model", f"openai-api/forestlens/{name}",
        "--log-dir", str(tmp_path / "logs"), "--display", "none", "--max-connections", "16",
    ]  # fmt: skip
    given = {"FORESTLENS_BASE_URL": server.url, "FORESTLENS_API_KEY": "none"}
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "logs").glob("*.eval")
    log = read_eval_log(str(path))
    assert log.status == "success", log.error
    prompts = [Prompt(case.prompt, p, key=pixel_digest(p)) for case, p in zip(cases, pictures, strict=True)]
    expected = server.server.served[name].generate(organism, prompts, max_new_tokens=16).texts
    said = {sample.id: sample.output.completion for sample in log.samples or ()}
    assert [said[case.id] for case in cases] == expected
    right = sum(text.startswith(case.gold.title()) for text, case in zip(expected, cases, strict=True))
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == pytest.approx(right / len(cases))
