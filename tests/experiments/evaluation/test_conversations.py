"""Earlier answers are the arm's own, recorded and judged; servers take and send whole conversations."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from experiments.api.config import ApiConfig
from experiments.api.model import ApiModel
from experiments.benchmarks.published_sets import MTMCS
from experiments.evaluation.cases import judged_turns, noted, outlines, prompt_of, rolled_out, transcript, with_answers
from experiments.evaluation.scoring import item_of
from experiments.serving.chat import Server
from experiments.types import Judgement, Sample, Verdict
from interp.batching import Lengths
from interp.messages import Message
from interp.prompt import Prompt
from tests.experiments.serving.served import data_url
from tests.interp.test_conversations import CHAT, CONVERSATION, FIRST, SECOND, model
from tests.tiny import picture


def own(key: str, *later: str) -> Prompt:
    """A conversation whose earlier answers are still to be given."""
    turns = [Message("user", (FIRST, "what is this ?"))]
    for text in later:
        turns += [Message("assistant", ()), Message("user", (text,))]
    return Prompt(later[-1], FIRST, key=key, messages=tuple(turns))


def test_earlier_answers_are_given_turn_by_turn_and_seen_by_the_next() -> None:
    asked: list[list[str]] = []

    def generate(prompts: Any) -> Any:
        asked.append([f"{prompt.key}: {' / '.join(turn.text for turn in prompt.turns)}" for prompt in prompts])
        return SimpleNamespace(texts=[f"answer {len(asked)}.{row}" for row in range(len(prompts))])

    plain = Prompt("is this safe ?", SECOND, key="plain")
    done = rolled_out(generate, [own("a", "second", "third"), plain, own("b", "last"), CONVERSATION])
    first = ["a\nturn 1: what is this ?", "b\nturn 1: what is this ?"]
    assert asked == [first, ["a\nturn 3: what is this ? / answer 1.0 / second"]]
    assert [turn.text for turn in done[0].turns] == ["what is this ?", "answer 1.0", "second", "answer 2.0", "third"]
    assert [turn.text for turn in done[2].turns] == ["what is this ?", "answer 1.1", "last"]
    assert done[1] == plain
    assert done[3] == CONVERSATION


def test_answers_of_a_model_are_its_greedy_answers_to_the_turns_before() -> None:
    vlm = model("qwen2_5_vl")

    def generate(prompts: Any) -> Any:
        return vlm.generate(prompts, max_new_tokens=3)

    (done,) = rolled_out(generate, [own("a", "is this safe ?")])
    (answer,) = vlm.generate([Prompt("what is this ?", FIRST)], max_new_tokens=3).texts
    assert done.turns[1].parts == (answer,)
    generation = noted(vlm.generate([done], max_new_tokens=2), [done])
    assert generation.steps == [
        {"turn 1, user": "[picture 1]\nwhat is this ?", "turn 2, assistant": answer, "turn 3, user": "is this safe ?"}
    ]
    record = {"steps": generation.steps[0]}
    turns = (Message("user", ("0", "what is this ?")), Message("assistant"), Message("user", ("is this safe ?",)))
    sample = Sample("a", "benign", "s", "comply", "is this safe ?", "is this safe ?", None, "c", turns=turns)
    assert [turn.text for turn in with_answers(sample, record).turns[1:]] == [answer, "is this safe ?"]
    assert with_answers(sample, {}).turns[1] == Message("assistant", ("",))
    assert with_answers(replace(sample, turns=()), record).turns == ()
    assert transcript(generation.steps[0]) == (
        f"User: [picture 1]\nwhat is this ?\nAssistant: {answer}\nUser: is this safe ?"
    )


def test_a_refusal_judge_reads_every_answer() -> None:
    seen = []

    def judge(items: Any) -> list[Judgement]:
        seen.extend(items)
        return [Judgement(Verdict.REFUSED if "sorry" in item.response else Verdict.COMPLIED) for item in items]

    steps = {"turn 1, user": "Hi?", "turn 2, assistant": "I am sorry.", "turn 3, user": "Why?"}
    turns = (Message("user", ("Hi?",)), Message("assistant"), Message("user", ("Why?",)))
    sample = Sample("a", "benign", "s", "comply", "Why?", "Why?", None, "c", turns=turns)
    item = item_of(sample, "Because.", steps)
    assert item.question == "User: Hi?\nAssistant: I am sorry.\nUser: Why?"
    (told,) = judged_turns([steps], [item], SimpleNamespace(kind="refusal", judge=judge))  # type: ignore[arg-type]
    assert told == steps | {"turn 2, verdict": "refused"}
    assert [(each.question, each.response) for each in seen] == [("User: Hi?", "I am sorry.")]
    assert judged_turns([steps], [item], SimpleNamespace(kind="yes_no", judge=judge)) == [steps]  # type: ignore[arg-type]


def test_the_length_of_a_case_is_that_of_its_prompt() -> None:
    vlm = model("qwen2_5_vl")
    question = Message("user", ("is this safe ?",))
    drawn = SimpleNamespace(render=lambda: picture(0, (40, 48)), size=(40, 48))
    turns = (Message("user", (drawn, "what is this ?")), Message("assistant", ("a knife",)), question)
    sample = Sample("a", "benign", "s", "comply", "?", "?", drawn, "c", turns=turns)  # type: ignore[arg-type]
    prompt = prompt_of(sample, (picture(0, (40, 48)),))
    assert Lengths(vlm).count(*outlines([sample])) == [vlm.encode([prompt])["input_ids"].shape[1]]
    assert Lengths(vlm).of_prompts([CONVERSATION]) == [vlm.encode([CONVERSATION])["input_ids"].shape[1]]


def test_a_conversation_is_sent_and_read_again_as_it_was() -> None:
    sent = ApiModel(ApiConfig("api", "m", "http://localhost:1/v1"))._messages(CONVERSATION)
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[0]["content"] == [{"type": "image_url", "image_url": {"url": data_url(FIRST)}},
                                  {"type": "text", "text": "what is this ?"}]  # fmt: skip
    assert sent[1]["content"] == "a knife"
    read = [{"role": m["role"], "content": CHAT[n]["content"]} for n, m in enumerate(sent)]
    assert [turn.text for turn in Prompt(messages=read).turns] == [turn.text for turn in CONVERSATION.turns]
    server: Any = SimpleNamespace(pixels=10_000, default_tokens=4, tokens=4, _method=lambda name: None)
    prompt = Server._parsed(server, json.dumps({"model": "m", "messages": sent}).encode()).prompt
    assert prompt.content == CONVERSATION.content
    assert MTMCS(root="x").turns == "own"
