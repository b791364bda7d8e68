"""Methods that only change scores: further branches next to the prompt, and a formula of all branches' logits.

    @dataclass(frozen=True)
    class TextOnly(BranchMethod):
        alpha: float = 1.0
        beta: float | None = 0.1
        other = "no_picture"

        def branches(self, vlm, prompts, encoded):
            return [vlm.encode([replace(prompt, image=None) for prompt in prompts])]

        def scores(self, logits, step):
            return (1 + self.alpha) * logits.clean - self.alpha * logits.others[0]

``BranchMethod`` runs them: greedy, sampled (``mitigation.wrappers.Sampled``), shifted, served. Importing this module
loads neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from mitigation.method import Work, check_alpha, check_beta, check_pictured

if TYPE_CHECKING:
    from torch import Tensor

    from interp.generation import AnswerScores
    from interp.vlm import VLM, Generation, Prompt

Inputs = Mapping[str, Any]  # of a batch, from ``vlm.encode``
UNCUT = "without a plausibility cutoff any token may be chosen, and a reply lists the likeliest alone; set beta"


@dataclass(frozen=True)
class BranchLogits:
    """The raw float32 logits of one step: ``clean`` [row vocab] after the prompts, ``others`` [branch row vocab].

    ``answers`` are the tokens of Yes and of No. ``late_verdicts`` says whether a verdict may come after the first token
    (``VLM.late_verdicts``).
    """

    clean: "Tensor"
    others: "Tensor"
    answers: tuple[Sequence[int], Sequence[int]]
    late_verdicts: bool = False


class BranchMethod:
    """A method by its branches and a formula. A frozen dataclass that inherits this has both, and no ``generate``.

    ``beta`` is the plausibility cutoff (None: none). ``pictured`` says why a prompt needs a picture, "" if it does not.
    ``uncut`` is whether the cutoff leaves both answers, if the most likely first token is one of them
    (``mitigation.contrastive.processors.uncut_answers``). ``other`` names what the further branches ask, in records of
    their margins (``Generation.branch_margins``); of several, they are ``other_1``, ``other_2`` and so on.
    """

    beta: float | None = None
    pictured: ClassVar[str] = ""
    other: ClassVar[str] = "other"
    uncut: ClassVar[bool] = True
    work: ClassVar[Work] = Work(prompts=2, branches=2)
    needs: ClassVar[str] = ""

    @property
    def needs_for_answers(self) -> str:
        """See ``mitigation.method.Abilities``."""
        return UNCUT if self.beta is None else ""

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> Sequence[Inputs]:
        """Return the inputs of each further branch, row by row: other pictures, other words, or no picture.

        None at all: the model answers as it is. ``encoded`` are the inputs of ``prompts``.

        Raises:
            UserError: the family cannot be asked so.
        """
        raise NotImplementedError

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """Return the scores [row vocab] that the token of ``step`` (from 0) is chosen from, before the cutoff.

        A pure function: of a row's scores, only that row's logits and the settings decide.
        """
        raise NotImplementedError

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return greedy answers with margins of the scores before the cutoff.

        Raises:
            UserError: a prompt has no image where it needs one, or the family cannot be asked so.
        """
        if self.pictured:
            check_pictured(prompts, self.pictured)
        encoded = vlm.encode(prompts)
        return self.answers(vlm, prompts, encoded, self.branches(vlm, prompts, encoded), max_new_tokens)

    def answers(
        self,
        vlm: "VLM",
        prompts: "Sequence[Prompt]",
        encoded: Inputs,
        others: Sequence[Inputs],
        max_new_tokens: int,
    ) -> "Generation":
        """Answer ``prompts`` (``encoded``) by ``scores`` of all branches' logits (``others``), and the cutoff.

        A model behind an API is asked for the branches' log-probabilities (``experiments.api.contrast``). A branch
        costs a forward per token. If the cutoff leaves one token, a CPU skips steps after the first. On an accelerator
        this look would cost a wait.
        """
        if gives_replies(vlm):
            return vlm.contrasted(self, prompts, others, max_new_tokens=max_new_tokens)  # type: ignore[attr-defined]
        if not others:
            return vlm.generate(prompts, max_new_tokens=max_new_tokens, encoded=encoded)
        from interp.generation import AnswerScores
        from mitigation.contrastive.processors import RuleLogitsProcessor

        answers, late = vlm.answer_ids, vlm.late_verdicts
        tokens = [token for ids in answers for token in ids]
        recorded = AnswerScores(answers, every=late)

        def rule(clean: "Tensor", others: "Tensor", step: int) -> "Tensor":
            recorded.add(step, clean, *others)
            return self.scores(BranchLogits(clean, others, answers, late), step)

        ruling = RuleLogitsProcessor(
            *(vlm.model, encoded["input_ids"], others, rule),
            beta=self.beta,
            answers=tokens if self.uncut else [],
            skips=self.beta is not None and vlm.device.type == "cpu" and vlm.leaves_out_steps,
            ends=vlm.end_ids,
            late_verdicts=tokens if late else [],
            prefill=vlm.prefill,
        )
        generation = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[ruling], encoded=encoded)
        return self.with_branch_scores(generation, recorded)

    def with_branch_scores(self, generation: "Generation", recorded: "AnswerScores") -> "Generation":
        """Return ``generation`` with each branch's margins at the verdicts, from the scores before the formula."""
        return self.with_branch_margins(generation, recorded.margins(len(generation.texts), generation.verdict_steps))

    def with_branch_margins(self, generation: "Generation", margins: "Tensor") -> "Generation":
        """Return ``generation`` with the margins [branch row] by the branch's name; the prompts' is ``clean``."""
        several = len(margins) > 2
        others = [f"{self.other}_{number}" if several else self.other for number in range(1, len(margins))]
        rows = [dict(zip(["clean", *others], row, strict=True)) for row in margins.T.tolist()]
        return replace(generation, branch_margins=rows)


@dataclass(frozen=True)
class Contrast(BranchMethod):
    """(1 + α)·l − α·l′ against one other branch, over the tokens that pass the plausibility cutoff.

    ``alpha`` is the weight of the contrast (0: none), ``beta`` the cutoff relative to the most likely token (None:
    none).
    """

    alpha: float = 1.0
    beta: float | None = 0.1
    uncut: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_beta(self.beta)

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """Return (1 + α)·clean − α·other (Leng et al. 2023, arXiv 2311.16922, equation 3)."""
        from mitigation.contrastive.processors import contrast

        return contrast(logits.clean, logits.others[0], alpha=self.alpha)


def gives_replies(vlm: Any) -> bool:
    """Return whether the model is behind an endpoint, whose ``encode`` gives the prompts themselves for inputs."""
    return hasattr(vlm, "contrasted")
