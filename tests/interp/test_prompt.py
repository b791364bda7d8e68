"""Prompts through chat templates, and what a template may not do silently."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from interp.errors import UserError
from interp.prompt import TODAY, with_keywords
from interp.vlm import VLM, Prompt
from tests import families
from tests.tiny import picture

QUESTION = Prompt("Is this safe?", picture())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def test_system_image_and_words_in_the_templates_order(vlm: VLM) -> None:
    prompt = Prompt("Is this safe?", picture(), system="Be careful.")
    assert vlm.render(prompt) == "Be careful. USER: <image>\nIs this safe? ASSISTANT:"
    assert vlm.render(Prompt("Is this safe?")) == "USER: Is this safe? ASSISTANT:"


@pytest.mark.parametrize("template", [None, ""])
def test_no_chat_template(vlm: VLM, template: str | None) -> None:
    vlm.processor.chat_template = template
    with pytest.raises(UserError, match=r"tiny has no chat template.*model\.chat_template"):
        vlm.render(QUESTION)


def test_a_template_that_drops_the_system_prompt(vlm: VLM) -> None:
    vlm.processor.chat_template = (
        "{% for m in messages if m.role == 'user' %}<image>{{ m.content[1].text }}{% endfor %}"
    )
    vlm.render(QUESTION)
    with pytest.raises(UserError, match="drops the system prompt"):
        vlm.render(Prompt("Is this safe?", picture(), system="Be careful."))


def test_instructblip_puts_its_image_tokens_in_front_by_itself() -> None:
    vlm = VLM(*families.instructblip())
    assert vlm.render(QUESTION) == "Is this safe?"
    assert (vlm.encode([QUESTION])["input_ids"] == vlm.model.config.image_token_id).sum() == 4


@pytest.mark.long
@given(st.dictionaries(st.sampled_from(["a", "b_1"]), JSON), st.sampled_from(["", "\n", "  ", "\n  "]))
def test_keywords_reach_the_template_and_nothing_else_changes(keywords: dict[str, Any], begins: str) -> None:
    values = "{% if a is defined %}{{ a | tojson }}{% endif %};{{ b_1 is defined and b_1 | tojson }}"
    template = begins + values + "\n{{ messages[0].content }}"
    messages: list[dict[str, str]] = [{"role": "user", "content": "?"}]
    ((given,), _) = render_jinja_template([messages], chat_template=with_keywords(template, keywords, name="m"))
    ((passed,), _) = render_jinja_template([messages], chat_template=template, **keywords)
    assert given == passed


def test_a_keyword_is_set_in_the_template() -> None:
    named = {"default": "{{ x }}", "tools": "{{ x }}!"}
    assert with_keywords(named, {"x": "it's"}, name="m")["tools"] == '{% set x = "it\'s" %}\n{{ x }}!'


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d %b %Y", "%A, %B %-d at %H:%M"])
def test_today_is_the_same_day_for_every_template(vlm: VLM, form: str) -> None:
    template = "\n  {{ strftime_now('" + form + "') }} <image>" + "{{ messages[-1].content[-1].text }}"
    for chat_template in (template, {"default": template}):
        vlm.processor.chat_template = chat_template
        assert vlm.render(QUESTION).startswith(f"\n  {TODAY.strftime(form)} <image>")


def test_a_template_that_forgets_the_image_is_refused(vlm: VLM) -> None:
    vlm.processor.chat_template = "{{ messages[-1].content[-1].text }}"
    with pytest.raises(UserError, match="0 image placeholders '<image>' for 1 images"):
        vlm.render(QUESTION)
