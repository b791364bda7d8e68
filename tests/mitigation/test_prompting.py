"""The two arms that only change words."""

from interp.vlm import Prompt
from mitigation.prompting import CONTEXT_PROMPT, SAFETY_SYSTEM_PROMPT, ContextPrompt, SafetyPrompt
from tests.tiny import picture


def test_the_context_prompt_is_a_line_before_the_question() -> None:
    asked = Prompt("what is red", picture(), system="be safe", key="k")
    changed = ContextPrompt().apply(asked)
    assert changed.text == f"{CONTEXT_PROMPT}\nwhat is red"
    assert (changed.image, changed.system, changed.key) == (asked.image, "be safe", "k")
    assert ContextPrompt("please").apply(asked).text == "please\nwhat is red"
    assert asked.text == "what is red"


def test_the_safety_prompt_is_the_system_prompt_alone() -> None:
    asked = Prompt("what is red", picture(), key="k")
    changed = SafetyPrompt().apply(asked)
    assert changed.system == SAFETY_SYSTEM_PROMPT
    assert (changed.text, changed.image, changed.key) == ("what is red", asked.image, "k")
