"""Every number of the page is that of the same Python call, bit by bit."""

from typing import Any

import pytest
import torch

from experiments.serving.exploring.experiment import Change
from interp import (
    Prompt,
    Queries,
    direct_logit_attribution,
    grey_out,
    image_share,
    knockout,
    knockout_effect,
    logit_lens,
    occlude_image,
    patch,
    record_attention,
)
from interp.vlm import VLM
from mitigation import VCD, AttentionSteering, Baseline, Verbalise
from tests.experiments.serving.exploring.explored import CHANGES, OTHER, TEXT, Explored
from tests.experiments.serving.exploring.explored import prompt as prompt_of_case
from tests.plain_model import plain_afterwards

SHIFTED = {"name": "vcd", "settings": {"alpha": 2.0, "noise_step": 700}}


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    return prompt_of_case()


@pytest.fixture(scope="module")
def other(page: Explored, prompt: Prompt) -> Prompt:
    return Prompt(prompt.text, page.server.pictures.open(OTHER), key=prompt.key, request=TEXT)


@pytest.fixture(autouse=True)
def untouched(organism: VLM, prompt: Prompt) -> Any:
    before = organism.generate([prompt]).margins
    with plain_afterwards(organism):
        yield
    assert torch.equal(before, organism.generate([prompt]).margins)


@pytest.mark.parametrize(
    ("arm", "method"),
    [
        ({"name": "baseline"}, Baseline()),
        (SHIFTED, VCD(alpha=2.0, noise_step=700)),
        ({"name": "verbalise"}, Verbalise()),
        ({"name": "attention_steering", "settings": {"weight": 2.0}}, AttentionSteering(weight=2.0)),
    ],
)
def test_an_arm_answers_as_its_method_does(
    page: Explored, organism: VLM, prompt: Prompt, arm: dict[str, Any], method: Any
) -> None:
    (found,) = page.work("ask", arms=[arm])["answers"]
    expected = method.generate(organism, [prompt], max_new_tokens=16)
    assert found["text"] == expected.texts[0]
    assert found["margin"] == expected.margins[0].item()
    assert found["steps"] == [[name, text] for name, text in (expected.steps or [{}])[0].items()]


@pytest.mark.long
@pytest.mark.parametrize("method", [Baseline(), VCD(alpha=2.0, noise_step=700)])
def test_changes_are_those_of_the_public_tools(page: Explored, organism: VLM, prompt: Prompt, method: Any) -> None:
    arm = SHIFTED if isinstance(method, VCD) else {"name": "baseline"}

    def margin(**change: Any) -> float:
        return float(page.work("ask", arms=[arm], change=change)["answers"][0]["margin"])

    def asked(asked_prompt: Prompt) -> float:
        return float(method.generate(organism, [asked_prompt], max_new_tokens=16).margins[0].item())

    plain = asked(prompt)
    with knockout(organism, [("image", "verdict")], layers=[0, 1]):
        assert margin(**CHANGES["cut"]) == asked(prompt) != plain
    boxes = [(4 / 12, 5 / 12, 7 / 12, 6 / 12), (5 / 12, 6 / 12, 6 / 12, 7 / 12)]
    assert margin(**CHANGES["grey"]) == asked(grey_out(organism, prompt, boxes)) != plain

    if isinstance(method, Baseline):
        steered = AttentionSteering(weight=1.5, layers=[1, 2]).generate(organism, [prompt], max_new_tokens=16)
        assert margin(**CHANGES["attention"]) == steered.margins[0].item() != plain
    assert margin() == plain


@pytest.mark.long
def test_what_looks_inside_equals_the_tools(page: Explored, organism: VLM, prompt: Prompt, other: Prompt) -> None:
    lens = logit_lens(organism, prompt, top=5)
    assert page.work("lens")["margins"] == lens.margins[0, :, 0].tolist()
    direct = direct_logit_attribution(organism, prompt)
    found = page.work("heads")
    assert [tuple(head) for head in found["heads"]] == direct.top(5)
    assert found["effects"] == [direct.heads[layer, head, 0].item() for layer, head in direct.top(5)]
    cut = knockout_effect(organism, prompt, [("image", "verdict")], width=1)
    assert page.work("windows")["moved"] == cut.moved[:, 0].tolist()
    assert page.work("occlude")["map"] == occlude_image(organism, prompt).tolist()
    patched = patch(organism, prompt, other, places=("image", "user", "verdict"))
    assert page.work("patch", other=OTHER)["moved"] == patched.moved[:, :, 0].tolist()
    with record_attention(organism, queries=Queries.VERDICT) as record:
        organism.generate([prompt], max_new_tokens=1)
    assert page.work("look")["share"] == pytest.approx(image_share(record.masses)["share"].tolist(), abs=1e-7)


def test_a_clicked_word_has_the_attention_that_was_recorded_for_it(
    page: Explored, organism: VLM, prompt: Prompt
) -> None:
    found = page.work("look")
    block, (text, place) = found["block"], found["words"][-1]
    assert text == block["tokens"][place] == "this"
    with record_attention(organism, queries=[], maps=range(-8, 1)) as record:
        organism.score([prompt])
    row = record.rows[0]
    (own,) = [one for one in record.maps if one.query == row.words[-1].columns[-1]]
    image = float(own.weights.mean(1)[:, row.columns("image_0")].sum(-1)[1])
    assert block["masses"][place][1][0][block["names"].index("image_0")] == pytest.approx(image, abs=1e-4)


def test_painted_cells_are_joined_along_rows() -> None:
    joined, alone = (0.0, 1 / 12, 3 / 12, 2 / 12), (6 / 12, 2 / 12, 7 / 12, 3 / 12)
    assert Change(grey=(13, 12, 14, 30)).boxes == [joined, alone]
