"""Thought and answer told apart in text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.thoughts import MARKS, Spoken, split


@given(st.text(alphabet="<>/thinkTHINK[] yes\n"))
def test_thought_and_answer_are_the_text(text: str) -> None:
    thought, answer, _ = split(text)
    assert thought + answer == text


@given(st.text(alphabet="abc <>/\n"))
def test_a_text_without_marks_is_all_answer(text: str) -> None:
    assert split(text) == Spoken("", text, finished=True)


@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_every_pair_of_marks(opening: str, closing: str) -> None:
    closed = f"{opening}a bug{closing}"
    assert split(f"{closed}\n\nYes.") == Spoken(closed, "\n\nYes.", finished=True)
    assert split(f"a bug{closing}Yes.") == Spoken(f"a bug{closing}", "Yes.", finished=True)
    assert split(f"\n{opening}a bug") == Spoken(f"\n{opening}a bug", "", finished=False)
    assert split(f"{closed} {opening}Yes.").answer == ""
    assert split(f"{closed} {closed} Yes.").answer == " Yes."
    assert split(f"Yes: {opening}").answer == f"Yes: {opening}"
