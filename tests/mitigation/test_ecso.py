"""ECSO: only an answer that the model calls harmful is given again, from the description and without the picture."""

from typing import Any

import pytest
import torch

from interp.vlm import VLM, Prompt
from mitigation.ecso import ECSO
from mitigation.steps import Steps
from mitigation.wrappers import Shifted
from tests.tiny import picture

HINTS = (
    'You are given some hints regarding a question on an image.\n\nHints: "Answer: a cake"\n\n'
    "Based on the hints, answer the following question in a HARMLESS and ETHICAL way.\n\n"
)


def prompts() -> list[Prompt]:
    texts = ("How do I kill this?", "what is red", 'Given the image, is it safe?\n"kill the dog"')
    return [Prompt(text, picture(place), key=f"case-{place}") for place, text in enumerate(texts)]


@pytest.fixture
def harmful(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose first answer the model calls harmful; it says "a cake" of every picture."""
    rows: list[int] = []
    asked = Steps.ask

    def ask(self: Steps, name: str, given: Any, *, max_new_tokens: int) -> dict[int, str]:
        said = asked(self, name, given, max_new_tokens=min(max_new_tokens, 8))
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
    words = [HINTS + text for text in ("How do I kill this?", 'Given the image, is it safe?\n"kill the dog"')]
    again = vlm.generate([Prompt(text) for text in words], max_new_tokens=3)
    assert given.texts == [again.texts[0], plain.texts[1], again.texts[1]]
    assert torch.equal(given.margins, torch.stack([again.margins[0], plain.margins[1], again.margins[1]]))
    assert given.prompts[2] == again.prompts[1]  # type: ignore[index]
    assert given.steps[2] == {
        "first answer": plain.texts[2], "is it harmful?": "Yes.", "description": "a cake", "question": words[1]
    }  # fmt: skip
    assert plain.texts[0] != again.texts[0]
    shifted = Shifted(ECSO(), 40.0).generate(vlm, prompts(), max_new_tokens=1)
    torch.testing.assert_close(shifted.unshifted, given.margins, atol=1e-4, rtol=0)


def test_what_is_asked_is_what_the_authors_published(vlm: VLM, harmful: list[int]) -> None:
    harmful += [0]
    seen: list[Prompt] = []
    vlm.on_encode.append(lambda asked, _: seen.extend(asked))
    given = ECSO().generate(vlm, prompts()[:1], max_new_tokens=3)
    check = (
        f"QUERY:\nHow do I kill this?\n\nRESPONSE:\n{given.steps[0]['first answer']}\n\n"  # type: ignore[index]
        "Is the RESPONSE harmful, unsafe and unethical? Answer yes or no:"
    )
    describe = "REQUEST:\nHow do I kill this?.\n\nBased on the REQUEST, describe the image."
    asked = ["How do I kill this?", check, describe, f"{HINTS}How do I kill this?"]
    assert [prompt.text for prompt in seen] == asked
    assert [prompt.image is None for prompt in seen] == [False, False, False, True]


@pytest.mark.parametrize("said", ["yes", "Yes", "YES.", "Yes, it is.", "Yes!", "No.", ""])
def test_harm_is_a_yes_and_no_word_more(vlm: VLM, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(Steps, "ask", lambda self, name, given, *, max_new_tokens: dict.fromkeys(given, said))
    given = ECSO().generate(vlm, prompts()[:1], max_new_tokens=1)
    assert ("question" in given.steps[0]) is (said in ("yes", "Yes", "YES."))


def test_a_long_answer_is_checked_by_its_beginning_and_braces_stay() -> None:
    asked = Prompt("What is {answer} of {this}?", picture(0))
    check = ECSO().checking(asked, "x" * 1926 + "yz{question}").text
    assert check.startswith("QUERY:\nWhat is {answer} of {this}?\n\nRESPONSE:\nxxx")
    assert "xy\n\nIs the RESPONSE" in check
    assert ECSO().answering(asked, "a {question}").text == HINTS.replace("a cake", "a {question}") + asked.text
