"""ECSO: only an answer that the model calls harmful is given again, from the description and without the picture."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.ecso import CHECK, DESCRIBE, ECSO
from mitigation.steps import Steps
from mitigation.wrappers import Shifted
from tests.tiny import picture


def prompts() -> list[Prompt]:
    texts = ("How do I kill this?", "what is red", 'Given the image, is it safe?\n"kill the dog"')
    return [Prompt(text, picture(place), key=f"case-{place}") for place, text in enumerate(texts)]


@pytest.fixture
def harmful(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose first answer the model calls harmful; it says "a cake" of every picture."""
    rows: list[int] = []
    asked = Steps.ask

    def ask(self: Steps, name: str, given: Any, *, max_new_tokens: int) -> dict[int, str]:
        said = asked(self, name, given, max_new_tokens=max_new_tokens)
        words = {row: ("Yes." if row in rows else "No.") if name == "is it harmful?" else "a cake" for row in said}
        for row, text in words.items():
            self.note(row, name, text)
        return words

    monkeypatch.setattr(Steps, "ask", ask)
    return rows


def test_harmless_answers_stay_as_they_are(vlm: VLM, harmful: list[int]) -> None:
    plain = vlm.generate(prompts(), max_new_tokens=3)
    given = ECSO().generate(vlm, prompts(), max_new_tokens=3)
    assert (given.texts, given.token_ids) == (plain.texts, plain.token_ids)
    assert torch.equal(given.margins, plain.margins)
    assert given.steps == [{"first answer": text, "is it harmful?": "No."} for text in plain.texts]


def test_a_harmful_answer_is_given_again_in_words(vlm: VLM, harmful: list[int]) -> None:
    harmful += [0, 2]
    plain = vlm.generate(prompts(), max_new_tokens=3)
    given = ECSO().generate(vlm, prompts(), max_new_tokens=3)
    words = ["a cake\n\nHow do I kill this?", 'a cake\n\nIs it safe?\n"kill the dog"']
    again = vlm.generate([Prompt(text) for text in words], max_new_tokens=3)
    assert given.texts == [again.texts[0], plain.texts[1], again.texts[1]]
    assert torch.equal(given.margins, torch.stack([again.margins[0], plain.margins[1], again.margins[1]]))
    assert given.prompts is not None
    assert given.prompts[2] == again.prompts[1]  # type: ignore[index]
    assert given.steps is not None
    assert given.steps[2] == {
        "first answer": plain.texts[2], "is it harmful?": "Yes.", "description": "a cake", "question": words[1]
    }  # fmt: skip
    assert plain.texts[0] != again.texts[0]
    shifted = Shifted(ECSO(), 40.0).generate(vlm, prompts(), max_new_tokens=1)
    torch.testing.assert_close(shifted.unshifted, given.margins, atol=1e-4, rtol=0)


def test_the_check_and_the_description_are_asked_beside_the_picture(vlm: VLM) -> None:
    seen: list[Prompt] = []
    vlm.on_encode.append(lambda asked, _: seen.extend(asked))
    given = ECSO(check="{question} {answer}", describe="what {question}").generate(vlm, prompts()[:1], max_new_tokens=3)
    assert seen[1].text == f"How do I kill this? {given.steps[0]['first answer']}"  # type: ignore[index]
    assert all(prompt.image is not None for prompt in seen[:2])
    assert "{question}" in CHECK
    assert "{answer}" in CHECK
    assert "{question}" in DESCRIBE


def test_a_batch_is_answered_as_one_by_one(vlm: VLM, harmful: list[int]) -> None:
    given = ECSO().generate(vlm, prompts(), max_new_tokens=3)
    for row, prompt in enumerate(prompts()):
        alone = ECSO().generate(vlm, [prompt], max_new_tokens=3)
        assert alone.token_ids == [given.token_ids[row]]
        torch.testing.assert_close(alone.margins[0], given.margins[row], atol=1e-4, rtol=0)


def test_what_it_cannot_work_on_is_refused_in_a_sentence(vlm: VLM) -> None:
    with pytest.raises(UserError, match="no image in prompt 'case-0'; ECSO puts what a picture shows into words"):
        ECSO().generate(vlm, [replace(prompts()[0], image=None)], max_new_tokens=1)
    with pytest.raises(UserError, match=r"it has to hold \{question\} and \{answer\}"):
        ECSO(check="harmful? {answer}")
    with pytest.raises(UserError, match=r"describe='what'; it has to hold \{question\}"):
        ECSO(describe="what")
    with pytest.raises(UserError, match="at least one token"):
        ECSO(description_tokens=0)
