"""Methods around other methods: ``Shifted`` moves a method's threshold, ``Sampled`` draws its tokens.

Both pass the method a VLM whose ``generate`` adds a logits processor after the method's own. Importing this module
loads neither torch nor transformers; generating does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from interp.errors import UserError
from mitigation.method import SCORES, Around, abilities, check_cases, check_seed, check_shift, check_temperature

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from interp.vlm import VLM, Generation, Prompt

    Added = Callable[[VLM, Sequence[Prompt], Mapping[str, Any], Sequence[LogitsProcessor]], LogitsProcessor]


class WrappedVLM:
    """A VLM that delegates to another.

    ``generate`` and ``score`` encode here, so that a subclass can change the inputs.
    """

    def __init__(self, vlm: "VLM") -> None:
        self._vlm = vlm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vlm, name)

    def generate(
        self, prompts: "Sequence[Prompt]", *, encoded: Mapping[str, Any] | None = None, **options: Any
    ) -> "Generation":
        """See ``VLM.generate``."""
        return self._vlm.generate(prompts, encoded=self.encode(prompts) if encoded is None else encoded, **options)

    def score(self, prompts: "Sequence[Prompt]", *, encoded: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """See ``VLM.score``."""
        return self._vlm.score(prompts, encoded=self.encode(prompts) if encoded is None else encoded, **options)


class ProcessingVLM(WrappedVLM):
    """A VLM whose ``generate`` runs an additional logits processor last.

    ``added(vlm, prompts, encoded, before)`` makes it, for the model, the prompts, their inputs and the method's
    processors. ``used`` says whether this VLM has generated.
    """

    def __init__(self, vlm: "VLM", added: "Added") -> None:
        super().__init__(vlm)
        self._added, self.used = added, False

    def around(self, other: "VLM") -> "ProcessingVLM":
        """Return the same wrapper around another model, for a method that answers with its own model."""
        self.used = True
        wrapper: ProcessingVLM = object.__new__(type(self))
        wrapper.__dict__ = self.__dict__ | {"_vlm": with_model(self._vlm, other)}
        return wrapper

    def generate(
        self,
        prompts: "Sequence[Prompt]",
        *,
        encoded: Mapping[str, Any] | None = None,
        logits_processor: "Sequence[LogitsProcessor] | None" = None,
        **options: Any,
    ) -> "Generation":
        """Return ``VLM.generate`` with the added processor last."""
        self.used = True
        encoded = self.encode(prompts) if encoded is None else encoded
        before = list(logits_processor or ())
        processors = [*before, self._added(self._vlm, prompts, encoded, before)]
        return super().generate(prompts, encoded=encoded, logits_processor=processors, **options)


def unwrapped(vlm: Any) -> "VLM":
    """Return the model inside all wrappers of ``vlm``."""
    while isinstance(vlm, WrappedVLM):
        vlm = vlm._vlm
    return cast("VLM", vlm)


def with_model(vlm: "VLM", other: "VLM") -> "VLM":
    """Return ``other`` in the same wrappers as ``vlm``."""
    return cast("VLM", vlm.around(other)) if isinstance(vlm, ProcessingVLM) else other


class Wrapper(Around):
    """A base of methods that add a logits processor after the processors of their ``method``."""

    needs: ClassVar[str] = SCORES

    def _check_method(self, done: str) -> None:
        """Check that the method is not sampled; ``done`` is "shifted" or "sampled"."""
        if not callable(getattr(self.method, "generate", None)) or isinstance(self.method, Sampled):
            raise UserError(
                f"method={self.method!r}; only a method without sampling, such as VCD(), can be {done}; give one, and "
                "sample last"
            )

    def _answers(self, vlm: "VLM", prompts: "Sequence[Prompt]", max_new_tokens: int, added: "Added") -> "Generation":
        """Return the method's answers by the scores of ``added``.

        Raises:
            UserError: the method does not answer through ``vlm.generate``.
        """
        wrapped = ProcessingVLM(vlm, added)
        generation = self.method.generate(cast("VLM", wrapped), prompts, max_new_tokens=max_new_tokens)
        if not wrapped.used:
            raise UserError(
                f"method={self.method!r} has its own decoding loop, which cannot be shifted or sampled; choose a "
                "method that answers through vlm.generate"
            )
        return generation


@dataclass(frozen=True)
class Shifted(Wrapper):
    """``method`` with ``shift`` logits added to its Yes/No margin at the verdict, half on each side.

    If verdicts come late, ``method`` writes what comes before them, and the shift acts on the next token
    (``mitigation.thinking``). The verdict follows the returned margin. If the method's most likely token there is an
    answer, both answers pass a plausibility cutoff, even at a shift of 0. ``Shifted(Baseline(), s)`` is
    ``ConstantShift(s)``. To sample, wrap the shifted method: ``Sampled(Shifted(method, shift))``. For trainable methods
    use ``ShiftedTrainable``.
    """

    method: Any  # a Method; Any because Hydra instantiates it separately
    shift: float = 0.0
    yes_no_only: ClassVar[bool] = True  # open answers have no such margin

    def __post_init__(self) -> None:
        check_shift(self.shift)
        self._check_method("shifted")

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return the method's answers with the shift; margins include it, ``unshifted`` are the method's own.

        Raises:
            UserError: the method does not answer through ``vlm.generate``, or an answer has no margin to shift.
        """
        from mitigation.thinking import in_two_steps

        def shifted(vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
            return self._answers(vlm, prompts, max_new_tokens, self._shifting)

        if vlm.late_verdicts or abilities(self.method).unscored:
            generation = in_two_steps(vlm, prompts, self.method.generate, shifted, max_new_tokens)
        else:
            generation = shifted(vlm, prompts, max_new_tokens=max_new_tokens)
        if bool((generation.margins.isnan() & generation.scored).any()):
            raise UserError(
                "the method has answers without a margin to shift; if its logits processor masks Yes or No, declare "
                "uncut_scores"
            )
        return generation

    def _shifting(
        self, vlm: "VLM", prompts: Any, encoded: Any, before: "Sequence[LogitsProcessor]"
    ) -> "LogitsProcessor":
        from mitigation.processors import ConstantShiftLogitsProcessor

        return ConstantShiftLogitsProcessor(vlm.answer_ids, shift=self.shift, after=before)


@dataclass(frozen=True)
class ShiftedTrainable(Around):
    """A trainable ``method`` that answers with ``shift`` logits added to its margin; see ``Shifted``."""

    method: Any  # a TrainableMethod; Any because Hydra instantiates it separately
    shift: float = 0.0
    yes_no_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shift(self.shift)

    def check_cases(self, questions: Sequence[str], safe: Sequence[bool]) -> None:
        """Check the cases as ``method`` does."""
        check_cases(self.method, questions, safe)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> Shifted:
        """See ``TrainableMethod.learn``."""
        return Shifted(self.method.learn(vlm, prompts, safe, out=out), self.shift)

    def read(self, out: Path) -> Shifted:
        """See ``TrainableMethod.read``."""
        return Shifted(self.method.read(out), self.shift)


@dataclass(frozen=True)
class Sampled(Wrapper):
    """``method`` with sampled tokens at ``temperature``; an answer does not depend on its batch.

    A case's draws depend only on its ``Prompt.key`` and ``seed`` (``mitigation.processors``), so that arms share random
    draws. Margins come from ``method``, before temperature and sampling. Methods with their own decoding loop are
    rejected.
    """

    method: Any  # a Method; Any because Hydra instantiates it separately
    temperature: float = 1.0
    seed: int = 0
    unscored: ClassVar[str] = "its answers are sampled, and a score is drawn from nothing"
    sampled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_seed(self.seed)
        self._check_method("sampled")

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return sampled answers.

        Raises:
            UserError: ``method`` raises it, or does not answer through ``vlm.generate``.
        """
        return self._answers(vlm, prompts, max_new_tokens, self._sampling)

    def _sampling(
        self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Mapping[str, Any], before: Any
    ) -> "LogitsProcessor":
        from mitigation.processors import CaseSampler

        keys = [prompt.key for prompt in prompts]
        return CaseSampler(keys, temperature=self.temperature, seed=self.seed)
