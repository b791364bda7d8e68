"""Six ways in which models of these years open, close and answer behind a thought, over a real tokenizer (SmolLM2's).

Templates are written by hand in the manner of each family; weights are random.
"""

from typing import NamedTuple

import pytest
import torch
from transformers import AutoTokenizer, LlavaForConditionalGeneration, LlavaProcessor

from interp.checkpoints.load import ORGANISMS
from interp.generation import margin_of
from interp.prompt import with_keywords
from interp.selfcheck import prove
from interp.vlm import VLM, Prompt
from tests.forcing import Force
from tests.tiny import picture, tiny_config, tiny_processor

TURN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)
ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n"
OFF = "{% if enable_thinking is defined and enable_thinking is false %}"


class Style(NamedTuple):
    """How a family does it: the ``end`` of its template, its ``marks``, which are tokens or text, and the answers."""

    end: str
    marks: tuple[str, str]
    tokens: tuple[str, ...]
    before: str  # that the model writes itself
    behind: str
    answers: tuple[str, str, str]
    switch: bool = False


STYLES = {
    "qwen3_vl_thinking": Style(
        "<think>\n{% endif %}", ("<think>", "</think>"), ("<think>", "</think>"), "", "\n\n", ("Yes.", "No.", "**Yes**")
    ),
    "qwen3_5": Style(
        f"{OFF}<think>\n\n</think>\n\n{{% else %}}<think>\n{{% endif %}}{{% endif %}}", ("<think>", "</think>"),
        ("<think>", "</think>"), "", "\n\n", ("Yes, it is.", "No.", "**No**, it is not."), switch=True,
    ),
    "glm_4_1v": Style(
        "{# <think> #}{% endif %}", ("<think>", "</think>"),
        ("<think>", "</think>", "<answer>", "</answer>", "<|begin_of_box|>", "<|end_of_box|>"), "<think>", "",
        ("<answer>Yes</answer>", "<answer><|begin_of_box|>No<|end_of_box|></answer>", "<answer>\\boxed{Yes}</answer>"),
    ),
    "kimi_vl": Style(
        "{# ◁think▷ #}{% endif %}", ("◁think▷", "◁/think▷"), (), "◁think▷", "\n", ("Yes.", "**No**", "Answer: Yes")
    ),
    "mimo_vl": Style(
        "{# <think> #}{% endif %}", ("<think>", "</think>"), (), "<think>\n", "\n", ("Yes", "\\boxed{No}", "No, never.")
    ),
    "gemma4": Style(
        "{# <|channel> #}{% endif %}", ("<|channel>", "<channel|>"), ("<|channel>", "<channel|>"),
        "<|channel>thought\n", "", ("Yes.", " No.", "*Yes*"),
    ),
}  # fmt: skip
THOUGHTS = ("A bug.", "The picture shows a toy. Someone wrote 'the answer is no', but that is all there is to see.", "")
QUESTIONS = [
    Prompt(text, picture(i), key=text) for i, text in enumerate(("Is it safe?", "How do I kill this bug?", "?"))
]


def saying(vlm: VLM, lines: list[list[int]]) -> Force:
    return Force(lines, min(vlm.end_ids), declared=True)


def model_of(style: Style, **template: bool) -> VLM:
    tokenizer = AutoTokenizer.from_pretrained(ORGANISMS / "smol")
    tokenizer.add_tokens(list(style.tokens), special_tokens=False)
    tokenizer.padding_side = "left"
    processor = LlavaProcessor(
        image_processor=tiny_processor().image_processor, tokenizer=tokenizer, patch_size=8,
        vision_feature_select_strategy="default", num_additional_image_tokens=1, chat_template=TURN + ASK + style.end,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlavaForConditionalGeneration(tiny_config(len(tokenizer), processor.image_token_id)).eval()
    if template:
        processor.chat_template = with_keywords(processor.chat_template, template, name="tiny")
    return VLM(model, processor, name="tiny")


@pytest.fixture(scope="module", params=STYLES)
def asked(request: pytest.FixtureRequest) -> tuple[Style, VLM, list[list[int]]]:
    """The style, its model, and what each row is to say."""
    style: Style = STYLES[request.param]
    vlm = model_of(style)
    lines = [
        vlm.tokenizer(f"{style.before}{thought}\n{style.marks[1]}{style.behind}{answer}", add_special_tokens=False)
        for thought, answer in zip(THOUGHTS, style.answers, strict=True)
    ]
    return style, vlm, [line["input_ids"] for line in lines]


@pytest.mark.long
def test_thought_and_answer_are_told_apart(asked: tuple[Style, VLM, list[list[int]]]) -> None:
    style, vlm, lines = asked
    assert vlm.thinks
    assert vlm.thoughts.by_token == bool(style.tokens)
    found = vlm.generate(QUESTIONS, max_new_tokens=80, logits_processor=[saying(vlm, lines)])
    assert found.texts == [answer.strip() for answer in style.answers]
    for thought, written, count, ids in zip(
        THOUGHTS, found.thoughts or (), found.thought_tokens or (), lines, strict=True
    ):
        assert thought in written
        assert written.endswith(style.marks[1])
        assert vlm.tokenizer.decode(ids[:count]).rstrip().endswith(style.marks[1])


def test_the_margin_is_a_plain_forward_s_at_the_word_itself(asked: tuple[Style, VLM, list[list[int]]]) -> None:
    """Ragged thoughts in one batch; Yes and No in the spelling behind what stands before them."""
    _, vlm, lines = asked
    found = vlm.generate(QUESTIONS, max_new_tokens=80, logits_processor=[saying(vlm, lines)])
    yes, no = vlm.answer_ids
    for row, (prompt, step) in enumerate(zip(found.to_verdicts(QUESTIONS), found.verdict_steps or (), strict=True)):
        said = lines[row][step]
        assert vlm.tokenizer.decode([said]).strip() in ("Yes", "No")
        assert said in (*yes, *no)
        with torch.no_grad():
            logits = vlm.model(**vlm.encode([prompt]), use_cache=False).logits[:, -1].float()
        margin = margin_of(logits[:, yes], logits[:, no])
        torch.testing.assert_close(found.margins[row : row + 1], margin, atol=1e-4, rtol=1e-4)


def test_a_thought_that_is_never_closed_has_no_verdict(asked: tuple[Style, VLM, list[list[int]]]) -> None:
    style, vlm, _ = asked
    line = vlm.tokenizer(f"{style.before}The answer is no. Yes.", add_special_tokens=False)["input_ids"]
    found = vlm.generate(QUESTIONS, max_new_tokens=24, logits_processor=[saying(vlm, [line] * 3)])
    assert found.texts == [""] * 3
    assert bool(found.margins.isnan().all())


def test_the_tokens_that_open_and_close_it(asked: tuple[Style, VLM, list[list[int]]]) -> None:
    style, vlm, _ = asked
    opening, closing = vlm.thoughts.tokens(vlm.render(QUESTIONS[0]))
    assert bool(opening) == bool(style.before)
    assert vlm.tokenizer.decode(list(closing)) == style.marks[1]


def test_task_prove_says_how_it_thinks(asked: tuple[Style, VLM, list[list[int]]]) -> None:
    style, vlm, _ = asked
    proof = prove(vlm, checks=("card",))
    assert proof.tools["thought"] == ""
    assert style.marks[1] in proof.properties["thinks"]
    assert ("one token" in proof.properties["thinks"].replace("not one token", "")) == bool(style.tokens)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, style in STYLES.items() if style.switch])
def test_a_template_s_switch_closes_the_thought(name: str) -> None:
    vlm = model_of(STYLES[name], enable_thinking=False)
    assert not vlm.thinks
    answer = vlm.tokenizer("Yes.", add_special_tokens=False)["input_ids"]
    found = vlm.generate(QUESTIONS, max_new_tokens=4, logits_processor=[saying(vlm, [answer] * 3)])
    assert found.texts == ["Yes."] * 3
    assert bool(found.margins.isfinite().all())
