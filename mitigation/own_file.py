"""A method in a user's Python file: a function with one of four names, or a class.

- ``rule(scores, step)``: a logits rule. It returns new scores [row vocab] from the model's scores (float32) at ``step``
  (0 at the first token).
- ``contrast(clean, other, step)``, with ``second(prompt)``: a rule of two branches. ``other`` are the scores after the
  prompt that ``second`` returns: another picture, none, or other words. ``BETA`` is the plausibility cutoff (default:
  none).
- ``edit(here)``: an edit of the residual stream. It returns the new ``here.hidden``
  (``interp.hooks.residual.LayerStates``), or None. It is called at ``LAYERS`` (default: 1 to the last).
- ``ask(prompt)``: returns another prompt instead of this one.
- a class with ``generate(vlm, prompts, *, max_new_tokens)``: anything else (``mitigation.method.Method``).

Keyword-only parameters of a function, or fields of a dataclass, are its settings. Two names are not settings.
``prompts`` are the prompts of the rows. ``learned`` is the result of a function ``learn(vlm, prompts, safe)`` of the
same file: tensors and numbers by name, saved as safetensors. The file runs with the user's rights, like any
script. Importing this module loads neither torch nor transformers.
"""

import hashlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from interp.tensor_file import NamedTensors, check_model, digest_of, read_tensors, write_tensors
from mitigation.branches import BranchLogits, BranchMethod
from mitigation.method import SCORES, Abilities, MethodFault, Work, abilities
from mitigation.wrappers import Shifted, ShiftedTrainable

if TYPE_CHECKING:
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt

ARGUMENTS = {"rule": "scores, step", "contrast": "clean, other, step", "edit": "here", "ask": "prompt"}
OF_LOGITS = {
    "rule": SCORES,
    "contrast": "a contrast of your own may be any function of the whole vocabulary's logits, and a reply lists some",
}
LEARN, LEARN_ARGUMENTS = "learn", "vlm, prompts, safe"
LEARNED, PROMPTS = "learned", "prompts"  # parameters that are given, and no settings
HASH_LENGTH = 12
OWES_TO_LEARN = "learn(vlm, prompts, safe) returns a dict of tensors and finite numbers by name"


def own_method(path: str, settings: dict[str, Any] | None = None, shift: float = 0.0) -> Any:
    """Return the method in the file ``path``: a ``Method``, or a ``TrainableMethod`` where the file has a ``learn``.

    ``shift`` are logits on the Yes/No margin (``mitigation.wrappers``).

    Raises:
        UserError: as ``OwnFile`` and ``OwnLearner``.
    """
    learns = _Own(path).learns
    method = OwnLearner(path, settings or {}) if learns else OwnFile(path, settings or {})
    if not shift:
        return method
    return ShiftedTrainable(method, shift) if learns else Shifted(method, shift)


def file_digest(code: bytes) -> str:
    """Return 12 hex digits of the sha256 of a file's contents."""
    return hashlib.sha256(code).hexdigest()[:HASH_LENGTH]


@dataclass(frozen=True)
class _Own:
    """The file ``path``, run, with the ``settings`` of its functions; ``digest`` identifies its code in ``repr``.

    Its method is the function or class ``_kind`` of ``_module``.

    Raises:
        UserError: no such file, one that cannot be run, or no or several methods in it.
    """

    path: str = field(repr=False)
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = field(init=False, default="")
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        file = Path(self.path).expanduser()
        try:
            digest = file_digest(file.read_bytes())
        except OSError as error:
            raise UserError(
                f"method.path={self.path}: cannot be read ({error.strerror}); give a Python file with a method"
            ) from error
        object.__setattr__(self, "name", file.name)
        object.__setattr__(self, "digest", digest)
        _ = self._kind

    @cached_property
    def _module(self) -> ModuleType:
        return _run(Path(self.path).expanduser(), self.digest)

    @cached_property
    def _kind(self) -> str:
        return _only_method(self._module, self.name)

    @property
    def learns(self) -> bool:
        """Return whether the file has a function ``learn``."""
        return callable(getattr(self._module, LEARN, None))

    @property
    def work(self) -> Work:
        """See ``mitigation.method.Abilities``: a contrast's two branches, or what the file's class declares."""
        return _OwnContrast.work if self._kind == "contrast" else abilities(self._bound).work

    @cached_property
    def _bound(self) -> Any:
        """Return the method's function with its settings bound, or the class made with them.

        Raises:
            UserError: settings that it does not have, or no parameter for the learned values.
        """
        function = getattr(self._module, self._kind)
        if self._kind not in ARGUMENTS:
            if abilities(made := self._called(function, self._kind, "", self.settings)()).fitted_to:
                raise _learns(self.name, self._kind)
            return made
        if self.learns is not (LEARNED in _given(function)):
            raise UserError(
                f"{self.name}: what {LEARN}({LEARN_ARGUMENTS}) returns is the parameter {LEARNED} of {self._kind}, and "
                f"one of the two is missing; write both, with {self._kind}({ARGUMENTS[self._kind]}, *, {LEARNED})"
            )
        return self._called(function, self._kind, ARGUMENTS[self._kind], self.settings)

    def _called(
        self, function: Callable[..., Any], kind: str, positional: str, settings: Mapping[str, Any]
    ) -> "partial[Any]":
        signature = inspect.signature(function)
        given = _given(function) if positional else set()
        try:
            if clashes := given & settings.keys():
                raise TypeError(f"{', '.join(sorted(clashes))} is given, and no setting")
            signature.bind(*filter(None, positional.split(", ")), **settings, **dict.fromkeys(given))
        except TypeError as error:
            raise UserError(
                f"{self.name}: {kind}{signature} is called as {kind}({positional}) with the settings "
                f"{dict(settings) or 'none'} ({error}); settings are parameters after a *, given as "
                "method.settings={NAME: VALUE}"
            ) from error
        return partial(function, **settings)


@dataclass(frozen=True)
class OwnFile(_Own):
    """The method in the file ``path`` with its ``settings``.

    ``learned_file`` is what the file's ``learn`` returned, as ``OwnLearner`` saved it.

    Raises:
        UserError: no such file, a file that cannot be run, no or several methods in it, or unknown settings. The file
            has a ``learn`` and ``learned_file`` is missing.
    """

    learned_file: Path | None = field(default=None, repr=False, compare=False)
    learned_digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learned_file is not None:
            object.__setattr__(self, "learned_digest", digest_of(self.learned_file))
        elif self.learns:
            raise UserError(f"{self.name}: it learns first; make it with OwnLearner(path), which has learn and read")
        _ = self._bound

    @property
    def learned_in(self) -> str:
        """See ``mitigation.method.Abilities``."""
        return str(self.learned_file or "")

    def __getattr__(self, name: str) -> Any:
        """Return what the file's class declares. A function that only changes words works over an API."""
        if name not in Abilities.__dataclass_fields__ or "_bound" not in self.__dict__:
            raise AttributeError(name)
        if name == "works_over_api" and self._kind == "ask":
            return True
        if name == "needs" and self._kind in OF_LOGITS:
            return OF_LOGITS[self._kind]
        return getattr(abilities(self._bound), name)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return the answers of the file's method.

        Raises:
            UserError: it was learned on another model.
        """
        kind, module = self._kind, self._module
        if kind not in ARGUMENTS:
            return self._bound.generate(vlm, prompts, max_new_tokens=max_new_tokens)
        function = self._with_what_is_given(self._bound, vlm, prompts)
        if kind == "contrast":
            contrast = _OwnContrast(module.second, function, getattr(module, "BETA", None))
            return contrast.generate(vlm, prompts, max_new_tokens=max_new_tokens)
        if kind == "rule":
            from mitigation.processors import OwnRuleLogitsProcessor

            ruling = OwnRuleLogitsProcessor(function)
            return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[ruling])
        if kind == "edit":
            from interp.hooks.residual import edit_residual, last_layer

            layers = getattr(module, "LAYERS", None) or range(1, last_layer(vlm) + 1)
            with edit_residual(vlm, function, layers=list(layers)):
                return vlm.generate(prompts, max_new_tokens=max_new_tokens)
        changed = [replace(function(_own_copy(prompt)), key=prompt.key) for prompt in prompts]
        return vlm.generate(changed, max_new_tokens=max_new_tokens)

    def _with_what_is_given(
        self, function: Callable[..., Any], vlm: "VLM", prompts: "Sequence[Prompt]"
    ) -> Callable[..., Any]:
        wanted = _given(function)
        given: dict[str, Any] = {PROMPTS: prompts} if PROMPTS in wanted else {}
        if LEARNED in wanted:
            check_model(vlm, self._file)
            given[LEARNED] = {**self._file.about["numbers"], **self._file.tensors}
        return partial(function, **given)

    @cached_property
    def _file(self) -> NamedTensors:
        assert self.learned_file is not None
        return read_tensors(self.learned_file, OwnLearner.KIND)


def _own_copy(prompt: "Prompt") -> "Prompt":
    """Return the prompt with pictures that a file's function may draw on, so that no other branch or arm sees it."""
    return prompt.with_images(lambda image: image.copy())


@dataclass(frozen=True)
class _OwnContrast(BranchMethod):
    """The file's ``contrast`` of the prompts and of what ``second`` makes of them."""

    other: ClassVar[str] = "second"
    second: Callable[..., Any]
    contrast: Callable[..., Any]
    beta: float | None

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Any) -> list[Any]:
        return [vlm.encode([replace(self.second(_own_copy(prompt)), key=prompt.key) for prompt in prompts])]

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        from mitigation.processors import same_shape

        returned = self.contrast(logits.clean, logits.others[0], step)
        return same_shape(returned, logits.clean, "contrast(clean, other, step)")


@dataclass(frozen=True)
class OwnLearner(_Own):
    """The method in the file ``path`` before its ``learn(vlm, prompts, safe)`` was called: a ``TrainableMethod``.

    Raises:
        UserError: as ``OwnFile``; or the file's method has no parameter for what is learned.
    """

    KIND: ClassVar[str] = "OwnLearner"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._bound, self._learner

    @cached_property
    def _learner(self) -> "partial[Any]":
        return self._called(getattr(self._module, LEARN), LEARN, LEARN_ARGUMENTS, {})

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> OwnFile:
        """Call the file's ``learn``, and write what it returns to ``out``.

        Raises:
            MethodFault: it raised something, or returned anything but tensors and finite numbers by name.
            UserError: raised by it.
        """
        try:
            returned = self._learner(vlm, list(prompts), list(safe))
        except (UserError, OSError, MemoryError):
            raise
        except Exception as error:
            from interp.batching import out_of_memory

            if out_of_memory(error):
                raise
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            raise MethodFault(
                f"{self.name}: learn raised {words}{line_in(Path(self.path), error)}; {OWES_TO_LEARN}"
            ) from error
        tensors, numbers = _parted(returned, self.name)
        about = {"numbers": numbers, "n": len(prompts), "code": self.digest}
        write_tensors(out, self.KIND, tensors, about, vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> OwnFile:
        """Return the method with what ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method or other code.
        """
        if (code := read_tensors(out, self.KIND).about.get("code")) != self.digest:
            raise UserError(
                f"{out} was learned with code {code}, and {self.name} has {self.digest}; remove it to learn it again, "
                "or give the file that it was learned with"
            )
        return OwnFile(self.path, self.settings, out)


def _parted(returned: Any, name: str) -> "tuple[dict[str, Tensor], dict[str, float]]":
    """Split the result of a ``learn`` into tensors and numbers.

    Raises:
        MethodFault: it is something else.
    """
    from torch import Tensor

    if not isinstance(returned, Mapping) or not returned:
        what = "nothing" if isinstance(returned, Mapping) else type(returned).__name__
        raise MethodFault(f"{name}: learn returned {what}; {OWES_TO_LEARN}")
    tensors, numbers = {}, {}
    for key, value in returned.items():
        number = isinstance(value, int | float)
        if not isinstance(key, str) or not (number or isinstance(value, Tensor)):
            raise MethodFault(f"{name}: learn returned {type(value).__name__} as {key!r}; {OWES_TO_LEARN}")
        if not (math.isfinite(value) if number else bool(value.isfinite().all())):
            raise MethodFault(f"{name}: learn returned {key!r} with values that are not finite; {OWES_TO_LEARN}")
        if number:
            numbers[key] = value
        else:
            tensors[key] = value.detach().clone()  # safetensors takes no two names of one memory
    return tensors, numbers


def _given(function: Callable[..., Any]) -> set[str]:
    """Return the names among ``learned`` and ``prompts`` that the function has as keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} & {LEARNED, PROMPTS}


def _run(file: Path, digest: str) -> ModuleType:
    """Return the file as a module. It runs once for each content.

    Raises:
        UserError: the file raises an exception, with the line.
    """
    name = f"_forestlens_own_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"method.path={file}: is no Python file; its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(
            f"method.path={file}: {type(error).__name__}: {error}{line_in(file, error)}; correct it"
        ) from error
    return module


def line_in(file: Path, error: BaseException) -> str:
    """Return `` (my_rule.py, line 3)`` where the error passed through ``file``, else nothing."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == file.name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" ({file.name}, line {line})"


def _only_method(module: ModuleType, name: str) -> str:
    """Return the name of the one method in the file.

    Raises:
        UserError: there is none, there are several, one learns first, or a contrast lacks its second prompt.
    """
    methods = [kind for kind in ARGUMENTS if callable(getattr(module, kind, None))]
    classes = {
        kind: value
        for kind, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    if learning := [kind for kind, value in classes.items() if hasattr(value, "learn")]:
        raise _learns(name, learning[0])
    methods += [kind for kind, value in classes.items() if hasattr(value, "generate")]
    if len(methods) != 1:
        there = f"there are {', '.join(methods)}" if methods else "there is none"
        functions = ", ".join(f"{kind}({arguments})" for kind, arguments in ARGUMENTS.items())
        raise UserError(
            f"{name}: a file has one method and {there}; it is a function {functions}, or a class with generate(vlm, "
            "prompts, *, max_new_tokens)"
        )
    if callable(getattr(module, LEARN, None)) and methods[0] in classes:
        raise UserError(
            f"{name}: learn goes with a function {', '.join(ARGUMENTS)}; a class that learns has learn and read itself "
            "(mitigation/method.py), and is named by _target_"
        )
    if methods == ["contrast"] and not callable(getattr(module, "second", None)):
        raise UserError(
            f"{name}: contrast needs a function second(prompt) next to it, which returns the prompt of the second "
            "branch"
        )
    return methods[0]


def _learns(name: str, kind: str) -> UserError:
    return UserError(
        f"{name}: {kind} learns first; name it by _target_ in a FOLDER/method/NAME.yaml of your own, and give "
        "--config-dir FOLDER method=NAME"
    )
