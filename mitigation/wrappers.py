"""Methods around other methods: ``Shifted`` moves a method's threshold, ``Sampled`` draws its tokens.

Both give the method a VLM whose ``generate`` adds processors after the method's own. Methods with a field ``shift``
answer through ``with_shift``. Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from interp.errors import UserError
from mitigation.validation import check_seed, check_shift, check_temperature

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


class AskedVLM:
    """Everything but ``generate`` is the model's own; ``asked`` says whether the method came this way at all."""

    def __init__(self, vlm: "VLM") -> None:
        self._vlm = vlm
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vlm, name)

    def added(self, prompts: "Sequence[Prompt]", encoded: Mapping[str, Any], own: Sequence[Any]) -> list[Any]:
        """The processors that come after the method's ``own``."""
        raise NotImplementedError

    def generate(
        self, prompts: "Sequence[Prompt]", *, logits_processor: Sequence[Any] | None = None, **options: Any
    ) -> "Generation":
        """``VLM.generate`` with the added processors last."""
        self.asked = True
        if options.get("encoded") is None:  # by this VLM, for whoever listens to what it encodes
            options["encoded"] = self.encode(prompts)
        own = list(logits_processor or ())
        processors = [*own, *self.added(prompts, options["encoded"], own)]
        return self._vlm.generate(prompts, logits_processor=processors, **options)


@dataclass(frozen=True)
class Shifted:
    """``method`` with ``shift`` logits added to its Yes/No margin at the first answer token, half on each side.

    The verdict then follows the returned margin: where the method's likeliest first token is an answer, a plausibility
    cutoff does not hold between the two answers, also at a shift of 0. ``Shifted(Baseline(), s)`` is
    ``ConstantShift(s)``. To draw tokens, sample the shifted method: ``Sampled(Shifted(method, shift))``.
    """

    method: Any  # a Method; the type of a Hydra node that is built by itself
    shift: float = 0.0
    yes_no_only: ClassVar[bool] = True  # an open answer has no such margin

    def __post_init__(self) -> None:
        """UserError unless the shift is a finite number and the method one that can be shifted."""
        check_shift(self.shift)
        if not callable(getattr(self.method, "generate", None)) or isinstance(self.method, Sampled):
            raise UserError(
                f"method={self.method!r}; what is shifted is a method such as VCD(), before its tokens are drawn; name "
                "one, and sample the shifted one"
            )

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """The method's answers with the shift; margins are the method's plus ``shift``. UserError as ``with_shift``."""
        return with_shift(
            vlm, self.shift, lambda shifting: self.method.generate(shifting, prompts, max_new_tokens=max_new_tokens)
        )


def with_shift(vlm: "VLM", shift: float, answer: "Callable[[VLM], Generation]") -> "Generation":
    """What ``answer`` gives for a VLM whose ``generate`` shifts the first token's scores, as ``Shifted`` says.

    Raises:
        UserError: ``answer`` does not go through ``vlm.generate``, or knows no margins (a lazy branch).
    """
    shifting = _ShiftingVLM(vlm, shift)
    generation = answer(cast("VLM", shifting))
    if not shifting.asked:
        raise UserError(
            "the method decodes in a loop of its own, whose scores cannot be shifted; shift a method that answers "
            "through vlm.generate"
        )
    if bool(generation.margins.isnan().any()):
        raise UserError(
            "the method knows no margins to shift (branch=lazy leaves the second branch out); take branch=sequential"
        )
    return replace(generation, margins=generation.margins + shift)


class _ShiftingVLM(AskedVLM):
    """Shifts the first token's scores."""

    def __init__(self, vlm: "VLM", shift: float) -> None:
        super().__init__(vlm)
        self._shift = shift

    def added(self, prompts: "Sequence[Prompt]", encoded: Mapping[str, Any], own: Sequence[Any]) -> list[Any]:

        return [VerdictShiftLogitsProcessor(self._vlm.answer_ids, shift=self._shift, after=own)]


@dataclass(frozen=True)
class Sampled:
    """``method`` with sampled instead of greedy tokens, at ``temperature``; an answer does not depend on its batch.

    A case's draw follows from its ``Prompt.key`` and ``seed`` alone (``mitigation.processors``), the same for every
    method, so that arms are paired in their chance as well. Margins are those of ``method``: before temperature and
    draw. Not for methods that bring a decoding loop of their own, which are refused.
    """

    method: Any  # a Method; the type of a Hydra node that is built by itself
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_temperature(self.temperature)
        check_seed(self.seed)
        if not callable(getattr(self.method, "generate", None)) or isinstance(self.method, Sampled):
            raise UserError(f"method={self.method!r}; what is sampled is a method such as VCD(), once; name one")

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Sampled answers; UserError as ``method``'s, and if it decodes without ``vlm.generate``."""
        sampling = _SamplingVLM(vlm, self.temperature, self.seed)
        generation = self.method.generate(cast("VLM", sampling), prompts, max_new_tokens=max_new_tokens)
        if not sampling.asked:
            raise UserError(
                f"method={self.method!r} decodes in a loop of its own, which would stay greedy; sample a method that "
                "answers through vlm.generate"
            )
        return generation


class _SamplingVLM(AskedVLM):
    """Draws the tokens."""

    def __init__(self, vlm: "VLM", temperature: float, seed: int) -> None:
        super().__init__(vlm)
        self._temperature, self._seed = temperature, seed

    def added(self, prompts: "Sequence[Prompt]", encoded: Mapping[str, Any], own: Sequence[Any]) -> list[Any]:
        from mitigation.processors import CaseSampler

        # A paired branch stacks its noised rows under the clean ones; both take the token of one draw.
        copies = len(encoded["input_ids"]) // len(prompts)
        keys = [prompt.key for prompt in prompts] * copies
        return [CaseSampler(keys, temperature=self._temperature, seed=self._seed)]
