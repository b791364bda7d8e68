"""A model behind an endpoint that answers prompts as ``interp.vlm.VLM`` does, without weights, logits or tokens.

Methods that work through prompts only (``mitigation.method.Abilities.works_over_api``) accept it as their model.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from experiments.api.client import AnswerCache, Endpoint
from experiments.api.config import ApiConfig
from experiments.api.reply import Reply, one_line
from experiments.benchmarks.images import data_url, pixel_digest
from experiments.types import Status
from interp.batching import BatchContext
from interp.errors import UserError
from mitigation.method import Method, abilities

if TYPE_CHECKING:
    from interp.generation import Generation
    from interp.vlm import Prompt


def check_methods(arms: Mapping[str, Method]) -> None:
    """Refuses arms that need weights or logits.

    Raises:
        UserError: names the first of them.
    """
    for arm, method in arms.items():
        if not abilities(method).works_over_api:
            raise UserError(
                f"arm {arm} ({type(method).__name__}) needs the model's weights or logits, which no API gives; "
                "over an API only Baseline, ContextPrompt, SafetyPrompt, Verbalise and ECSO work; leave it out, or run "
                "an open model here"
            )


class ApiModel:
    """One model of an endpoint; nothing is sent before the first prompt. Answers are cached in ``cache``, if given.

    ``batches`` forms batches as a VLM's do, in the order of the prompts. ``reported``
    collects the names under which the endpoint answered, which may be more specific than ours.

    Raises:
        UserError: see ``ApiConfig.check``; or the ``openai`` package is not installed.
    """

    revision = None

    def __init__(self, config: ApiConfig, *, cache: Path | None = None) -> None:
        self.config = config
        self.name = config.name
        self.batches = BatchContext(self)
        self.reported: set[str] = set()
        # Sampled answers are meant to differ each time.
        self._cache = AnswerCache(cache) if cache is not None and config.temperature == 0 else None
        self._endpoint = Endpoint(config)

    def __repr__(self) -> str:
        return f"ApiModel({self.config!r})"

    def generate(self, prompts: "Sequence[Prompt]", *, max_new_tokens: int = 16) -> "Generation":
        """Answers, ``concurrency`` at a time and in the order of ``prompts``, each with its status and reason.

        ``margins`` are NaN where the endpoint gives no log-probabilities; see ``reply.first_token_margin``.

        Raises:
            UserError: no prompts, or the endpoint refuses the key, the model or the account.
        """
        import torch

        from interp.generation import Generation

        if not prompts:
            raise UserError("no prompts in this batch; a batch has at least one; check the benchmark and its limit")
        answers = self._answers(prompts, self.config.max_tokens or max_new_tokens)
        self.reported |= {answer.model for answer in answers if answer.model}
        return Generation(
            texts=[answer.text for answer in answers],
            token_ids=[[] for _ in answers],
            margins=torch.tensor([answer.margin for answer in answers], dtype=torch.float32),
            finished=[answer.status is Status.ANSWERED for answer in answers],
            statuses=[answer.status.value for answer in answers],
            reasons=[answer.reason for answer in answers],
            sampled=self.config.temperature != 0,
        )

    def _answers(self, prompts: "Sequence[Prompt]", budget: int) -> list[Reply]:
        self._endpoint.stop.clear()
        with ThreadPoolExecutor(min(self.config.concurrency, len(prompts))) as pool:
            futures = [pool.submit(self._answer, prompt, budget) for prompt in prompts]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                for future in futures:
                    if future.done():
                        future.result()
                return [future.result() for future in futures]
            except BaseException:  # Ctrl-C, or an error that every request would meet: do not send the rest
                self._endpoint.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _answer(self, prompt: "Prompt", budget: int) -> Reply:
        try:
            picture = None if prompt.image is None else self._fitted(prompt.image)
            url = "" if picture is None else data_url(picture)  # lossless: what is recorded is seen
        except Exception as error:  # Pillow may raise anything while scaling or writing
            reason = f"the image cannot be sent ({type(error).__name__}: {one_line(str(error))})"
            return Reply(Status.BAD_IMAGE, reason=reason)
        key = self._content_key(prompt, picture, budget)
        kept = self._cache.get(key) if self._cache else None
        if kept is not None:
            return kept
        answer = self._endpoint.ask(_messages(prompt, url), budget, with_image=picture is not None)
        if self._cache:
            self._cache.put(key, answer)
        return answer

    def _content_key(self, prompt: "Prompt", picture: Image.Image | None, budget: int) -> str:
        """The hash of a request whose picture is given by the digest of its pixels."""
        shown = "" if picture is None else pixel_digest(picture)
        sent = self.config.identity() | {"max_tokens": budget, "token_field": self.config.token_field}
        sent |= {"messages": _messages(prompt, shown)}
        return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()

    def _fitted(self, image: Image.Image) -> Image.Image:
        longest = self.config.max_image_side
        if longest is not None and max(image.size) > longest:
            image = image.copy()
            image.thumbnail((longest, longest))
        return image


def _messages(prompt: "Prompt", url: str) -> list[dict[str, Any]]:
    """The prompt as chat messages, the image before the words as in the templates of the open models."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
    if not url:
        return [*system, {"role": "user", "content": prompt.text}]
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt.text}]
    return [*system, {"role": "user", "content": parts}]
