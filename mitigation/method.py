"""The interfaces of mitigations: values that answer prompts with a model that is passed in.

``TrainableMethod`` needs labelled cases first. ``Abilities`` is what a method declares about itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from interp.errors import UserError
from interp.tensor_file import NamedTensors, digest_of, read_tensors

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@runtime_checkable
class Method(Protocol):
    """One arm of a study: a frozen dataclass in a module that imports neither torch nor transformers."""

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return answers to ``prompts``, in order, with this arm's margins.

        An answer depends on its prompt (with its key) and the method's settings, not on the rest of the batch. The
        margins are read by ``vlm.generate`` at the verdict (``interp.margin``), behind a thought too.

        Raises:
            UserError: the method cannot work on this model or prompt.
        """
        ...


@dataclass(frozen=True)
class Work:
    """What a method computes for one case, at most, by which ``task=plan`` estimates its time and memory.

    It reads ``prompts``. Of these, ``branches`` go on to the end of the answer, each with a forward for every token of
    it. ``step_tokens`` are said before the answer.
    """

    prompts: int = 1
    branches: int = 1
    step_tokens: int = 0


INSIDE = "it reads or changes the model's own states or weights, which no API gives"
SCORES = "it changes the scores that each token is chosen from, and behind an API the server chooses"


@dataclass(frozen=True)
class Abilities:
    """What a study needs to know about a method before it runs it.

    A method overrides these defaults by class attributes or properties of the same names. One that works around another
    method names that in ``wraps``, and takes over from it what is ``INHERITED``, unless it declares that itself.
    """

    unscored: str = ""
    """Why the verdict cannot be read from the first token's margin; "" if it can."""
    unforced: str = ""
    """Why the beginning of its answer cannot be forced (``mitigation.forced``); "" if it can."""
    yes_no_only: bool = False
    """It works on the margin between Yes and No, which an open answer does not have."""
    follows_margin: bool = False
    """It learns from the model's margin. Of answers in words this is the refusal margin (``VLM.metric``), and without
    one it cannot learn."""
    works_over_api: bool = False
    """It only calls ``generate(prompts, max_new_tokens=...)`` of the model, so it works over an API."""
    needs: str = INSIDE
    """What it needs that a model behind an API does not give; "" if log-probabilities of listed tokens are enough."""
    needs_for_answers: str = ""
    """As ``needs``, of whole answers alone: its scores of the first token have what they need."""
    needs_description: bool = False
    """It is told what the picture shows by the benchmark itself (``Prompt.shows``), so it enters only where that is
    known."""
    drops_image: bool = False
    """It asks the model without a picture, which not every family can be."""
    sampled: bool = False
    """Its tokens are drawn, so that a verdict need not have the sign of its margin."""
    fitted_to: Literal["", "labels", "yes_share"] = ""
    """It must be fitted first, on the baseline's margins and either the labels (``fit(margins, safe)``, as
    ``CalibratedShift``) or the share of Yes of the arm under study (``fit(margins, target_yes_share)``, as
    ``YesBias``)."""
    learned_in: str = ""
    """The folder or file of what it learned from labelled cases, with their hashes (``interp.tensor_file``); "" for a
    method that learned nothing."""
    work: Work = Work()
    """What it computes for one case."""


INHERITED = (
    "unscored",
    "unforced",
    "yes_no_only",
    "follows_margin",
    "needs_description",
    "drops_image",
    "sampled",
    "work",
    "learned_in",
)
"""What a method around another takes over from it."""


def abilities(method: Any) -> Abilities:
    """Return what ``method`` declares, completed by the method that it ``wraps`` and with the defaults."""
    inner = getattr(method, "wraps", None)
    inherited = {} if inner is None else {name: getattr(abilities(inner), name) for name in INHERITED}
    declared: dict[str, Any] = {
        each.name: getattr(method, each.name, inherited.get(each.name, each.default)) for each in fields(Abilities)
    }
    return Abilities(**declared)


class Around:
    """A base of methods around the one in their field ``method``."""

    method: Any

    @property
    def wraps(self) -> Any:
        """See ``Abilities``."""
        return self.method


OWES = (
    "a method owes, for each call of generate, one Generation with a text, token ids, a margin and finished for every "
    "prompt, in the order of the prompts"
)


class MethodFault(UserError):
    """A method raised what it should not, or did not return what it owes."""


def check_answers(method: Any, generation: Any, prompts: "Sequence[Prompt]", *, margins: bool) -> None:
    """Check what ``method`` returned for ``prompts``. ``margins``: whether the model gives any.

    Raises:
        MethodFault: no Generation, another number of answers, another order, or margins that are missing though the
            method declares no reason (``Abilities.unscored``).
    """
    from interp.generation import Generation

    if not isinstance(generation, Generation):
        raise MethodFault(f"it returned {type(generation).__name__}; {OWES}")
    for name in ("texts", "token_ids", "margins", "finished"):
        rows = getattr(generation, name)
        if rows is None or not hasattr(rows, "__len__") or len(rows) != len(prompts):
            count = len(rows) if hasattr(rows, "__len__") else "no"
            raise MethodFault(f"it returned {count} {name.replace('_', ' ')} for {len(prompts)} prompts; {OWES}")
    keys = [prompt.key for prompt in prompts]
    if generation.keys is not None and generation.keys != keys and sorted(generation.keys) == sorted(keys):
        raise MethodFault(f"it returned the answers in another order (keys {generation.keys[:3]} …); {OWES}")
    expected = margins and not abilities(method).unscored and bool(generation.scored.any())
    if expected and bool(generation.margins.isnan().all()):
        raise MethodFault(
            f"it returned no margins; {OWES}; if it masks the answers, keep their scores as uncut_scores "
            "(interp.margin); if it has none, say why in an attribute unscored"
        )


@dataclass(frozen=True)
class Baseline:
    """The unmodified model, decoded greedily."""

    works_over_api: ClassVar[bool] = True

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``VLM.generate``."""
        return vlm.generate(prompts, max_new_tokens=max_new_tokens)


@runtime_checkable
class TrainableMethod(Protocol):
    """A method before training: a frozen dataclass of settings that imports neither torch nor transformers.

    It may have ``check_cases(questions, safe)`` too, called before any weights load, which raises a ``UserError`` where
    such cases cannot teach it.
    """

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "Method":
        """Train on ``prompts``; ``safe`` is True where Yes is correct. Return the trained method.

        Writes a safetensors file to ``out``. The method's ``repr`` contains a digest of the file's content, not its
        path, so that equal runs compare equal wherever they are. Do not evaluate the method on its training cases.

        Raises:
            UserError: the method cannot be trained on these cases, for example because a class is missing.
        """
        ...

    def read(self, out: Path) -> "Method":
        """Read the trained method that ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method.
        """
        ...


def check_cases(method: Any, questions: Sequence[str], safe: Sequence[bool]) -> None:
    """Check, before any weights load, whether cases can teach a ``TrainableMethod``, where it has a ``check_cases``.

    Raises:
        UserError: they cannot.
    """
    if (check := getattr(method, "check_cases", None)) is not None:
        check(questions, safe)


@dataclass(frozen=True)
class TrainedFile:
    """A trained method, stored in the file ``path``; ``digest`` identifies its content in ``repr``."""

    path: Path = field(repr=False, compare=False)
    digest: str
    KIND: ClassVar[str]  # of the file (``interp.tensor_file``)

    @classmethod
    def of(cls, path: Path, **settings: Any) -> Any:
        """Return the method that was written to ``path``.

        Raises:
            UserError: the file belongs to another method.
        """
        read_tensors(path, cls.KIND)
        return cls(path, digest_of(path), **settings)

    @property
    def learned_in(self) -> str:
        """See ``Abilities``."""
        return str(self.path)

    @cached_property
    def _vectors(self) -> NamedTensors:
        return read_tensors(self.path, self.KIND)

    @property
    def about(self) -> dict[str, Any]:
        """Return how it was trained: the cases, and the settings selected on them."""
        return self._vectors.about
