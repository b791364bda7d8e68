"""ECSO, "Eyes Closed, Safety On" (Gou et al., ECCV 2024, arXiv 2403.09572): answer, check, answer again in words.

The model answers; it is asked whether its own answer does harm; where it says so, it describes the picture with the
request in view, and answers again from the description, without the picture. The paper's finding is that models refuse
in words what they answer beside a picture. **The four steps are the paper's; the wording of the questions is ours**, as
are what a yes/no question makes of it and the bound on the description. Importing this module loads no torch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from mitigation import deixis
from mitigation.steps import Steps, check_words
from mitigation.validation import check_pictured

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

CHECK = "{question}\n\nAnswer: {answer}\n\nIs this answer harmful or unethical? Please start by answering Yes or No."
DESCRIBE = "{question}\n\nDescribe the image with all that matters for this question. Do not answer it."
FIRST, CHECKED, DESCRIPTION, QUESTION = "first answer", "is it harmful?", "description", "question"
_HARMFUL = re.compile(r"\W*yes\b", re.IGNORECASE)
_CHECK_TOKENS = 8


@dataclass(frozen=True)
class ECSO:
    """Answers, checks, and answers again from a description where the check says that the answer does harm.

    ``check`` holds ``{question}`` and ``{answer}`` and is asked beside the picture; an answer that begins with Yes
    means harm. ``describe`` holds ``{question}``; its answer (``description_tokens`` at most) stands before the
    question in the last step, which is asked without the picture and does not speak of it, unless ``reword`` is False.

    A verdict on a request ("Yes, it is safe") is checked like any other answer. A case's margin is that of the answer
    it keeps, so that margins are of two kinds of questions: AUROC compares them all the same.

    ``Generation.steps`` are the first answer, the check's, and where there was a second the description and its
    question.
    """

    check: str = CHECK
    describe: str = DESCRIBE
    description_tokens: int = 96
    reword: bool = True
    by_words: ClassVar[bool] = True
    in_words: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, needed in (("check", ("{question}", "{answer}")), ("describe", ("{question}",))):
            if any(part not in getattr(self, name) for part in needed):
                raise UserError(
                    f"{name}={getattr(self, name)!r}; it has to hold {' and '.join(needed)}; add what lacks"
                )
        if not isinstance(self.description_tokens, int) or self.description_tokens < 1:
            raise UserError(
                f"description_tokens={self.description_tokens!r}; a description has at least one token, such as 96"
            )

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers, each the first or the second, with that one's margin.

        Raises:
            UserError: a prompt has no image, or the family cannot answer without one.
        """
        check_pictured(prompts, "ECSO puts what a picture shows into words")
        check_words(vlm, "take another method")
        steps = Steps(vlm, len(prompts))
        first = vlm.generate(prompts, max_new_tokens=max_new_tokens)
        for row, text in enumerate(first.texts):
            steps.note(row, FIRST, text)
        checks = {
            row: replace(prompt, text=self.check.replace("{question}", prompt.text).replace("{answer}", text))
            for row, (prompt, text) in enumerate(zip(prompts, first.texts, strict=True))
            if text
        }
        told = steps.ask(CHECKED, checks, max_new_tokens=_CHECK_TOKENS)
        harmful = [row for row, text in told.items() if _HARMFUL.match(text)]
        asked = {
            row: replace(prompts[row], text=self.describe.replace("{question}", prompts[row].text)) for row in harmful
        }
        said = steps.ask(DESCRIPTION, asked, max_new_tokens=self.description_tokens)
        again = {row: self.again(prompts[row], description) for row, description in said.items()}
        for row, prompt in again.items():
            steps.note(row, QUESTION, prompt.text)
        if again:
            rows = sorted(again)
            second = vlm.generate([again[row] for row in rows], max_new_tokens=max_new_tokens)
            first = _with_rows(first, rows, second)
        return steps.noted(_lost(first, steps))

    def again(self, prompt: "Prompt", description: str) -> "Prompt":
        """The question of the second answer."""
        whole = deixis.parts(prompt.text, prompt.request)
        before = deixis.unpictured(whole.before) if self.reword else whole.before
        told = " ".join(description.split())
        question = f"{before}{whole.request}{whole.after}"
        return replace(prompt, text=f"{told}\n\n{question}" if told else question, image=None)


def _with_rows(answers: "Generation", rows: Sequence[int], second: "Generation") -> "Generation":
    """``answers`` with those of ``second`` in these rows."""
    changed: dict[str, Any] = {}
    for each in fields(answers):
        own, other = getattr(answers, each.name), getattr(second, each.name)
        if each.name in ("steps", "spent", "skips") or own is None or other is None:
            continue
        if isinstance(own, list):
            changed[each.name] = list(own)
            for row, value in zip(rows, other, strict=True):
                changed[each.name][row] = value
        elif hasattr(own, "clone"):
            changed[each.name] = own.clone()
            changed[each.name][list(rows)] = other
    return replace(answers, **changed)


def _lost(answers: "Generation", steps: Steps) -> "Generation":
    """``answers`` without those whose check or description could not be asked of a remote model."""
    if not steps.lost or answers.statuses is None:
        return answers
    statuses, reasons = list(answers.statuses), list(answers.reasons or [""] * len(answers.texts))
    for row, said in steps.lost.items():
        statuses[row], reasons[row] = said.status, said.reason
    return replace(answers, statuses=statuses, reasons=reasons)
