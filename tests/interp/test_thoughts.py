"""Thought and answer told apart, in text and by token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.thoughts import MARKS, Spoken, Thoughts, split
from interp.vlm import VLM, Prompt
from tests.forcing import Force
from tests.tiny import picture, tiny_tokenizer

PROMPTS = [Prompt("Is this safe?", picture(1), key="a"), Prompt("the cake", picture(2), key="b")]


@given(st.text(alphabet="<>/thinkTHINK[] yes\n"))
def test_thought_and_answer_are_the_text(text: str) -> None:
    thought, answer, *_ = split(text)
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
    assert split("a bug", starts_thought=True) == Spoken("a bug", "", finished=False)


def tokenizer(*marks: str, special: bool) -> Any:
    made = tiny_tokenizer()
    made.add_tokens(list(marks), special_tokens=special)
    return made


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_by_token(opening: str, closing: str, special: bool) -> None:
    known = tokenizer(opening, closing, special=special)
    thoughts = Thoughts(known, ends={known.eos_token_id})
    begin, end, stop = known.convert_tokens_to_ids([opening, closing, "</s>"])
    bug, yes = known.convert_tokens_to_ids(["knife", "Yes"])

    def told(*ids: int, starts_thought: bool = False) -> tuple[str, str, int]:
        said = thoughts.split_rows([list(ids)], starts_thought=starts_thought)
        return said["thoughts"][0].replace(" ", ""), said["texts"][0], said["thought_tokens"][0]

    assert told(begin, bug, end, yes, stop) == (f"{opening}knife{closing}", "Yes", 3)
    assert told(bug, bug, end, yes, stop, starts_thought=True) == (f"knifeknife{closing}", "Yes", 3)
    assert told(begin, bug, bug) == (f"{opening}knifeknife", "", 3)
    assert told(bug, yes, starts_thought=True) == (
        "knifeYes",
        "",
        2,
    )  # the template has opened it, and nothing closed it
    assert told(begin, bug, end, begin, yes) == (f"{opening}knife{closing}{opening}Yes", "", 5)
    assert told(begin, bug, end, begin, bug, end, yes)[1:] == ("Yes", 6)  # it thinks twice
    assert told(yes, stop) == ("", "Yes", 0)
    assert thoughts.starts_thought(f"USER: ? ASSISTANT: {opening}\n")
    assert not thoughts.starts_thought(f"USER: ? ASSISTANT: {opening}\n\n{closing}\n")


class Letters:
    """A tokenizer whose tokens are letters, and of the marks those in ``whole``."""

    unk_token_id = None

    def __init__(self, *whole: str) -> None:
        self.whole = {mark: 1000 + at for at, mark in enumerate(whole)}

    def convert_tokens_to_ids(self, text: str) -> int | None:
        return self.whole.get(text)

    def ids(self, *parts: str) -> list[int]:
        return [token for part in parts for token in ([self.whole[part]] if part in self.whole else map(ord, part))]

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        names = {token: mark for mark, token in self.whole.items()}
        return "".join(names.get(token) or chr(token) for token in ids)

    def batch_decode(self, rows: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in rows]


def test_a_mark_that_a_thought_quotes_ends_nothing() -> None:
    known = Letters("<think>", "</think>")
    quoted = ["I", *"<", "/think> is a mark, it is safe"]  # by letters, as text in a prompt is
    whole = known.ids("<think>") + [ord(letter) for letter in "".join(quoted)]
    thoughts = Thoughts(known, ends=())
    assert thoughts.split_rows([whole, whole[1:]], starts_thought=True)["texts"] == ["", ""]
    closed = [*whole, *known.ids("</think>", "Yes")]
    assert thoughts.split_rows([closed], starts_thought=False)["texts"] == ["Yes"]


@given(st.text(alphabet="ab \n", min_size=1, max_size=9), st.sampled_from(["Yes", " No.", ""]))
def test_marks_of_several_tokens_are_read_from_text(thought: str, answer: str) -> None:
    known = Letters()
    before = f"<think>{thought}</think>"
    said = Thoughts(known, ends=()).split_rows([known.ids(before + answer)], starts_thought=False)
    assert said == {"texts": [answer.strip()], "thoughts": [before], "thought_tokens": [len(before)]}


def test_marks_that_are_named_are_the_only_ones() -> None:
    known = Letters()
    thoughts = Thoughts(known, ends=(), named={"open": "<<", "close": ">>"})
    assert thoughts.split_rows([known.ids("<<a>> <think>b")], starts_thought=False)["texts"] == ["<think>b"]


def test_whether_a_thought_is_to_be_expected() -> None:
    thinking = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    thoughts = Thoughts(Letters(), ends=(), template=thinking)
    assert thoughts.expected("ASSISTANT:")
    assert not thoughts.expected("ASSISTANT:<think>\n\n</think>\n\n")
    assert not Thoughts(Letters(), ends=(), template="{{ messages }}").expected("ASSISTANT:")
    named = Thoughts(Letters(), ends=(), named={"open": "a", "close": "b"})
    assert named.expected("ASSISTANT:")
    assert not named.by_token
    assert Thoughts(Letters("<think>", "</think>"), ends=(), template=thinking).by_token


def test_a_model_answers_with_its_thought_apart(vlm: VLM) -> None:
    plain = vlm.generate(PROMPTS)
    assert plain.thoughts == ["", ""]
    assert not vlm.thinks
    known = vlm.tokenizer
    knife, safe, yes, stop = known.convert_tokens_to_ids(["knife", "safe", "Yes", "</s>"])
    vlm.thinking = {"open": "knife", "close": "safe"}
    assert vlm.thinks
    says = Force([[knife, knife, safe, yes, stop], [knife]], yes)
    found = vlm.generate(PROMPTS, max_new_tokens=5, logits_processor=[says])
    assert found.texts == ["Yes", ""]
    assert found.thoughts == ["knife knife safe", "knife Yes Yes Yes Yes"]
    assert found.thought_tokens == [3, 5]
    assert vlm.identity[-1] == "{'open': 'knife', 'close': 'safe'}"
