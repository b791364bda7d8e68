"""A vLLM that a small model answers for, a request at a time, for ``tests.experiments.faulty_server.Served``."""

import base64
import io
import json
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from interp.vlm import VLM, Prompt
from tests.experiments.faulty_server import Reply


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
            read_so_far = zip(logits[len(logits) - len(so_far) - 1 : -1], so_far, strict=True)
            rows = [self._listed(row, [*row.topk(count).indices.tolist(), token], 0) for row, token in read_so_far]
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
