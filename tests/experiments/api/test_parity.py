"""Parity of a model here and at an endpoint: one that serves it faithfully, and ones that do not in one respect."""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from PIL import Image

from experiments.api.config import ApiConfig
from experiments.api.model import ApiModel
from experiments.api.parity import Parity, Side, parity, thirty_prompts
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from tests.experiments.compose import run_of
from tests.experiments.faulty_server import Reply, Served


@dataclass(frozen=True)
class FakeEngine:
    """What vLLM replies, of ``vlm``: ``before`` the words of each prompt, pictures scaled to ``side`` or left out."""

    vlm: VLM
    before: str = ""
    side: int | None = None
    blind: bool = False
    weight: float = 1.0  # of all logits

    def __call__(self, request: dict[str, Any]) -> Reply:
        if "tokens" in request:
            return self._json({"prompt": self.vlm.tokenizer.decode(request["tokens"])})
        if "prompt" in request:
            ids = self.vlm.tokenizer(request["prompt"], add_special_tokens=request.get("add_special_tokens", True))
            return self._json({"tokens": list(ids["input_ids"])})
        if "max_tokens" not in request:
            return self._json({"tokens": self._ids(request["messages"], request.get("add_generation_prompt", True))})
        *_, last = request["messages"]
        so_far: list[int] = []
        if last["role"] == "assistant":
            so_far = self.vlm.tokenizer(last["content"], add_special_tokens=False)["input_ids"]
        inputs = self.vlm.encode([self._prompt(request["messages"])])
        read = inputs["input_ids"][0].tolist()
        tokens, lists, named = [], [], request.get("logprob_token_ids")
        for _ in range(request["max_tokens"]):
            logits = self._logits(inputs, [*so_far, *tokens])[-1]
            tokens.append(int(logits.argmax()))
            lists.append(self._listed(logits, named, request.get("top_logprobs") or 0))
            if tokens[-1] == self.vlm.tokenizer.eos_token_id:
                break
        content = [{"token": "", "logprob": 0.0, "top_logprobs": one} for one in lists]
        body: dict[str, Any] = {
            "choices": [{"message": {"content": self.vlm.tokenizer.decode(tokens)}, "token_ids": tokens,
                         "finish_reason": "stop" if tokens[-1] == self.vlm.tokenizer.eos_token_id else "length",
                         "logprobs": {"content": content} if request.get("logprobs") else None}],
            "prompt_token_ids": [*read, *so_far],
            "model": "m",
        }  # fmt: skip
        if count := request.get("prompt_logprobs"):
            logits = self._logits(inputs, so_far)
            rows = [self._listed(row, None, count) for row in logits[len(logits) - len(so_far) - 1 : -1]]
            near = [{one["token"].split(":")[1]: {"logprob": one["logprob"]} for one in row} for row in rows]
            body["prompt_logprobs"] = [None] * len(read) + near
        return self._json(body)

    def _logits(self, inputs: Any, more: list[int]) -> torch.Tensor:
        ids = torch.cat([inputs["input_ids"], torch.tensor([more], dtype=torch.long)], dim=1)
        with torch.no_grad():
            out = self.vlm.model(**{**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)})
        return self.weight * out.logits[0].float()

    def _listed(self, logits: torch.Tensor, named: list[int] | None, count: int) -> list[dict[str, Any]]:
        values = logits.log_softmax(-1)
        ids = [*(named or []), int(logits.argmax())] if named else values.topk(count).indices.tolist()
        return [{"token": f"token_id:{one}", "logprob": float(values[one])} for one in dict.fromkeys(ids)]

    def _prompt(self, messages: list[dict[str, Any]]) -> Prompt:
        content = next(one["content"] for one in messages if one["role"] == "user")
        if isinstance(content, str):
            return Prompt(self.before + content)
        url, text = content[0]["image_url"]["url"], content[1]["text"]
        image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
        if self.side:
            image = image.resize((self.side, self.side))
        return Prompt(self.before + text, None if self.blind else image)

    def _ids(self, messages: list[dict[str, Any]], answer_begins: bool) -> list[int]:
        rendered = self.vlm.processor.apply_chat_template(
            [one | {"content": [{"type": "text", "text": one["content"]}]} for one in messages],
            add_generation_prompt=answer_begins, tokenize=False,
        )  # fmt: skip
        return list(self.vlm.tokenizer(rendered, add_special_tokens=False)["input_ids"])

    @staticmethod
    def _json(body: Any) -> Reply:
        return Reply(json.dumps(body).encode())


@pytest.fixture(scope="module")
def here() -> VLM:
    return load("organism:llava", device="cpu")


@contextmanager
def served(reply: Any, **options: Any) -> Iterator[ApiModel]:
    server = Served(reply)
    settings = {"engine": "vllm", "logprobs": "auto", "retries": 0, "concurrency": 2, "shared": False} | options
    try:
        yield ApiModel(ApiConfig("there", "m", server.url, **settings))
    finally:
        server.close()


def some() -> list[Prompt]:
    """Two pictures under two questions each, and four prompts in words."""
    every = thirty_prompts(words=True)
    return [*every[:4], *every[20:24]]


@pytest.mark.long
def test_a_faithful_endpoint_is_the_same(here: VLM) -> None:
    with served(FakeEngine(here)) as there:
        found = parity(here, there)
    assert found.same, str(found)
    text = str(found)
    assert text.startswith("30 prompts here (float32) and there")
    assert "the same words, as tokens: 30 of 30" in text
    assert "as many tokens of the picture: 30 of 30" in text
    assert "margins within 0.01 logits: 30 of 30 (largest" in text
    assert "the same answer, up to 16 tokens: 30 of 30" in text
    assert "likely cause" not in text


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"before": "Be careful. "}, "8 prompts are written otherwise"),
        ({"blind": True}, "4 pictures do not arrive: no token of them is read there"),
        ({"weight": 1.5}, "other weights"),
    ],
)
def test_a_fault_is_named(here: VLM, fault: dict[str, Any], cause: str) -> None:
    with served(FakeEngine(here, **fault)) as there:
        found = parity(here, there, some())
    assert not found.same
    assert cause in str(found)
    assert str(found).endswith("not the same")


def test_other_pixels_are_told_from_other_weights(here: VLM) -> None:
    class Blurred(FakeEngine):
        def _prompt(self, messages: list[dict[str, Any]]) -> Prompt:
            asked = super()._prompt(messages)
            return asked if asked.image is None else replace(asked, image=asked.image.rotate(90))

    with served(Blurred(here)) as there:
        found = parity(here, there, some())
    assert "all with a picture, while 4 in words agree: the picture's pixels are made otherwise" in str(found)
    assert not found.same


def test_an_endpoint_without_tokens_is_compared_by_what_it_gives(here: VLM) -> None:
    def reply(request: dict[str, Any]) -> Reply:
        body = json.loads(FakeEngine(here)(request | {"top_logprobs": 5}).body or b"")
        choice = body["choices"][0]
        for step in choice["logprobs"]["content"]:
            for one in step["top_logprobs"]:
                one["token"] = here.tokenizer.decode([int(one["token"].split(":")[1])])
        choice["message"]["content"] = here.tokenizer.decode(choice.pop("token_ids"), skip_special_tokens=True)
        return Reply(json.dumps({"choices": [choice]}).encode())

    with served(reply, engine=None) as there:
        found = parity(here, there, some())
    assert "tokens: not given by this endpoint" in str(found)
    assert found.same, str(found)
    with served(lambda request: Reply(b"{}", 500), engine=None) as there:
        found = parity(here, there, some())
    assert "not answered: 8 of 8 (the first: transport_failed" in str(found)
    assert not found.same


def test_a_model_whose_picture_has_no_tokens_is_compared_by_all_else(
    here: VLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "layout", replace(here.layout, image_token=""))
    with served(lambda request: Reply(b"{}", 500), engine=None) as there:
        found = parity(here, there, some()[:1])
    assert found.image_token is None
    own = replace(found.here[0], answer="Yes")
    assert replace(found, here=[own], there=[own]).same


def made(here: list[Side], there: list[Side], dtype: str = "float32") -> Parity:
    prompts = [Prompt("?", Image.new("RGB", (10, 20)), key=f"p{row}") for row in range(len(here))]
    return Parity(prompts, here, there, image_token=9, close=1e-2, dtype=dtype, decode=lambda tokens: str(list(tokens)))


def test_causes_follow_from_what_differs() -> None:
    own = Side([1, 9, 9, 2], "Yes", 1.0, 1.0)
    assert made([own], [own]).same
    assert "begin with one token more there ('[1]')" in str(made([own], [replace(own, tokens=[1, 1, 9, 9, 2])]))
    tiles = str(made([own], [replace(own, tokens=[1, 9, 2])]))
    assert "(one of 10×20 pixels: 2 here, 1 there)" in tiles
    assert "a coarser number format there" in str(made([own], [replace(own, low=1.1, high=1.1)]))
    assert "two tokens that are nearly as likely" in str(made([own], [replace(own, answer="No")]))
    bounded = made([own], [replace(own, low=0.0, high=float("inf"))])
    assert bounded.same
    assert "1 of 1, 1 of them by bounds" in str(bounded)
    assert "margins: not given" in str(made([own], [replace(own, low=float("nan"), high=float("nan"))]))


def test_a_twin_is_of_an_endpoint_and_an_endpoint_takes_one() -> None:
    with pytest.raises(UserError, match=r"task\.twin=x: llava_organism is here"):
        _task("task.twin=x")
    with pytest.raises(UserError, match="give the same model here to compare it with"):
        _task("model=api", "model.name=a", "model.model=m", "model.base_url=http://127.0.0.1:9/v1")


def _task(*options: str) -> None:
    from hydra.utils import instantiate

    from tests.experiments.compose import composed

    config = composed("task=prove", *options)
    instantiate(config.task)(run_of("task=prove", *options))
