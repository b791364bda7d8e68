"""Visual contrastive decoding as a method (Leng et al. 2023, arXiv 2311.16922).

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from mitigation.branches import Contrast, Inputs, gives_replies
from mitigation.method import (
    BRANCHES,
    NOISE_KINDS,
    check_choice,
    check_count,
    check_noise_step,
    check_pictured,
    check_seed,
    set_images,
)

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

PIXELS = "its noise is added to processed pixels, which no picture file carries; noise=diffusion8 is what one carries"
SHORT = 32  # new tokens up to which a prefill costs more than the steps after it, which two branches run twice


@dataclass(frozen=True)
class VCD(Contrast):
    """Greedy decoding from (1 + α)·l(image) − α·l(distorted image) over the tokens that pass the plausibility cutoff.

    ``alpha`` is the weight of the contrast (0: none), ``beta`` the cutoff relative to the most likely token (None:
    none). ``noise`` is how the second image is distorted (``mitigation.contrastive.corruption``), ``noise_step`` the
    diffusion step (0 to 999). A case's noise depends only on its ``Prompt.key`` and ``seed``; prompts without a key
    share theirs. Published settings disagree, so none is called the default of the paper.

    ``diffusion8`` is diffusion of the picture itself before the processor, clipped to 8 bits, so that a picture file
    can carry it. ``noise_side`` is its side in pixels (None: its own size). The side of the processed picture is best:
    a processor that scales it averages the noise away.

    ``images`` are the numbers of the pictures to distort, from 1, if a prompt has several (None: all).

    ``branch`` is how the second image is run. The answers are the same, and the ``Generation`` and a run's records say
    which it was. ``paired``: both images in one batch of twice the rows, which reads the weights once. ``sequential``:
    a separate forward at each step; on a CPU, after the first step, only where more than one token passes the cutoff.
    ``auto``: sequential for answers of at most ``SHORT`` tokens, and for families whose processor joins no rows;
    paired for longer answers. Short answers gain little from a pair, and a sequential branch can share prefills with
    other methods (``interp.prefill_cache``).
    """

    noise_step: int = 500
    seed: int = 0
    noise: str = "diffusion"
    branch: str = "auto"
    noise_side: int | None = None
    images: Any = None  # a sequence of numbers, stored as a tuple; a list in a configuration
    pictured: ClassVar[str] = "VCD contrasts two pictures"
    other: ClassVar[str] = "second_picture"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise_step(self.noise_step)
        check_seed(self.seed)
        set_images(self)
        check_choice("noise", self.noise, NOISE_KINDS, hint="for no picture set method=text_only")
        if self.noise_side is not None:
            check_count("noise_side", self.noise_side, 1, hint="null keeps the picture's own size")
            if self.noise != "diffusion8":
                raise UserError(f"noise_side={self.noise_side} is only for noise=diffusion8; remove it")
        check_choice(
            "branch", self.branch, BRANCHES, hint="the answers are the same; sequential needs the least memory"
        )

    @property
    def needs(self) -> str:  # type: ignore[override]
        """See ``mitigation.method.Abilities``."""
        return PIXELS if self.noise == "diffusion" else ""

    def branch_for(self, vlm: "VLM", *, max_new_tokens: int) -> str:
        """Return the branch that ``generate`` runs with ``max_new_tokens``: never ``auto``.

        It depends on settings, length and the family only, not on what else is open around the model.

        Raises:
            UserError: ``paired``, and the processor cannot join the inputs of two batches.
        """
        from mitigation.contrastive.corruption import joins_rows

        if self.branch == "sequential" or (self.branch == "auto" and max_new_tokens <= SHORT):
            return "sequential"
        if joins_rows(vlm):
            return "paired"
        if self.branch == "auto":
            return "sequential"
        raise UserError(
            f"method.branch=paired with {vlm.name}, whose processor does not put one picture's pixels under the "
            "other's; two pictures cannot be one batch; choose method.branch=sequential"
        )

    def noised(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> Inputs:
        """Return ``encoded``, the inputs of ``prompts``, with the second picture of each in place of its own."""
        from mitigation.contrastive.corruption import corrupt_inputs

        step, side, only = self.noise_step, self.noise_side, self.images or ()
        return corrupt_inputs(vlm, prompts, encoded, kind=self.noise, step=step, seed=self.seed, side=side, only=only)

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the inputs with the second picture."""
        return [self.noised(vlm, prompts, encoded)]

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return greedy answers with margins of the contrasted scores before the cutoff, which would make ties.

        Raises:
            UserError: a prompt has no image, the model does not support contrasting (see
                ``VisualContrastiveLogitsProcessor``), or something records or edits a paired branch.
        """
        check_pictured(prompts, self.pictured)
        if gives_replies(vlm):
            return super().generate(vlm, prompts, max_new_tokens=max_new_tokens)
        vlm.require("vcd")

        branch = self.branch_for(vlm, max_new_tokens=max_new_tokens)
        encoded = vlm.encode(prompts)
        noised = self.noised(vlm, prompts, encoded)
        if branch == "paired":
            return replace(self._paired(vlm, prompts, encoded, noised, max_new_tokens), branch=branch)
        return replace(self.answers(vlm, prompts, encoded, [noised], max_new_tokens), branch=branch)

    def _paired(
        self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs, noised: Inputs, max_new_tokens: int
    ) -> "Generation":
        from interp.generation import AnswerScores
        from interp.hooks.forward import is_followed
        from mitigation.contrastive.paired import PairedBatch, PairedContrastLogitsProcessor, pair_inputs

        if is_followed(vlm):
            raise UserError(
                "attention or hidden states are being recorded or edited, and a paired batch holds the noised rows "
                "too; set method.branch=sequential (in Python: branch='sequential')"
            )
        both = pair_inputs(vlm.model, encoded, noised)
        recorded = AnswerScores(vlm.answer_ids, every=vlm.late_verdicts)
        pairing = PairedContrastLogitsProcessor(
            vlm.model, both["input_ids"], alpha=self.alpha, beta=self.beta, branches=recorded
        )
        generation = vlm.generate(
            prompts,
            max_new_tokens=max_new_tokens,
            logits_processor=[pairing],
            encoded=encoded,
            decode=PairedBatch(both, pairing),
        )
        return self.with_branch_scores(generation, recorded)


def in_two_branches(method: Any) -> Any:
    """Return ``method`` with ``branch="sequential"`` in place of ``auto``, also inside other methods.

    Use it before something records or edits forwards: it can follow the prompts' rows only.
    """
    if not is_dataclass(method) or isinstance(method, type):
        return method
    changes = {each.name: in_two_branches(getattr(method, each.name)) for each in fields(method) if each.init}
    changes = {name: value for name, value in changes.items() if value is not getattr(method, name)}
    if isinstance(method, VCD) and method.branch == "auto":
        changes["branch"] = "sequential"
    return replace(method, **changes) if changes else method
