"""A method in a Python file of the user's: a few lines under one of four names, or a class of its own.

``rule(scores, step)``
    a logits rule: new scores [row vocab] from the model's own (float32) at ``step`` (0 at the first token)
``contrast(clean, other, step)``, with ``second(prompt)``
    a rule of two branches: ``other`` are the scores after the prompt that ``second`` returns, with another picture,
    none, or other words. ``BETA`` is the plausibility cutoff (default: none)
``edit(here)``
    an edit of the residual stream: the new ``here.hidden`` (``interp.hooks.residual.LayerStates``), or None. ``LAYERS``
    are the layers it is called at (default: 1 to the last)
``ask(prompt)``
    another prompt in place of this one
a class with ``generate(vlm, prompts, *, max_new_tokens)``
    anything else (``mitigation.method.Method``)

Keyword-only parameters of a function, or fields of a dataclass, are its settings. The file is run with the user's
rights, as any script of theirs. Importing this module loads neither torch nor transformers.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.method import Abilities, abilities

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

ARGUMENTS = {"rule": "scores, step", "contrast": "clean, other, step", "edit": "here", "ask": "prompt"}
HASH_LENGTH = 12


@dataclass(frozen=True)
class OwnFile:
    """The method in the file ``path`` with its ``settings``; ``digest`` identifies the code in ``repr``.

    Raises:
        UserError: no such file, one that cannot be run, no or several methods in it, or unknown settings.
    """

    path: str = field(repr=False)
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = field(init=False, default="")
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        file = Path(self.path).expanduser()
        try:
            code = file.read_bytes()
        except OSError as error:
            raise UserError(
                f"method.path={self.path}: cannot be read ({error.strerror}); give a Python file with a method"
            ) from error
        object.__setattr__(self, "name", file.name)
        object.__setattr__(self, "digest", hashlib.sha256(code).hexdigest()[:HASH_LENGTH])
        module = _run(file, self.digest)
        kind = _only_method(module, file.name)
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_own", self._settled(getattr(module, kind), kind))

    def _settled(self, given: Callable[..., Any], kind: str) -> Any:
        """The function with its settings bound, or the class made with them."""
        signature = inspect.signature(given)
        positional = ARGUMENTS.get(kind, "")
        try:
            signature.bind(*filter(None, positional.split(", ")), **self.settings)
        except TypeError as error:
            raise UserError(
                f"{self.name}: {kind}{signature} is called as {kind}({positional}) with the settings "
                f"{self.settings or 'none'} ({error}); settings are parameters after a *, given as "
                "method.settings={NAME: VALUE}"
            ) from error
        if kind in ARGUMENTS:
            return partial(given, **self.settings)
        own = given(**self.settings)
        if abilities(own).fitted_to:
            raise _learns(self.name, kind)
        return own

    def __getattr__(self, name: str) -> Any:
        """What the file's class declares of itself; of a function, that one which only changes words can do so."""
        if name not in Abilities.__dataclass_fields__ or "_own" not in self.__dict__:
            raise AttributeError(name)
        if name == "works_over_api" and self.__dict__["_kind"] == "ask":
            return True
        return getattr(abilities(self.__dict__["_own"]), name)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """The answers of the file's method."""
        kind, own, module = self.__dict__["_kind"], self.__dict__["_own"], self.__dict__["_module"]
        if kind == "rule":
            from mitigation.processors import OwnRuleLogitsProcessor

            ruling = OwnRuleLogitsProcessor(own)
            return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[ruling])
        if kind == "contrast":
            from mitigation.prior_correction import answers_by_rule
            from mitigation.processors import same_shape

            second = vlm.encode([replace(module.second(prompt), key=prompt.key) for prompt in prompts])

            def contrasted(clean: Any, others: Any, step: int) -> Any:
                return same_shape(own(clean, others[0], step), clean, "contrast(clean, other, step)")

            beta = getattr(module, "BETA", None)
            return answers_by_rule(vlm, prompts, [second], contrasted, beta=beta, max_new_tokens=max_new_tokens)
        if kind == "edit":
            from interp.hooks.residual import edit_residual, last_layer

            layers = getattr(module, "LAYERS", None) or range(1, last_layer(vlm) + 1)
            with edit_residual(vlm, own, layers=list(layers)):
                return vlm.generate(prompts, max_new_tokens=max_new_tokens)
        if kind == "ask":
            asked = [replace(own(prompt), key=prompt.key) for prompt in prompts]
            return vlm.generate(asked, max_new_tokens=max_new_tokens)
        return own.generate(vlm, prompts, max_new_tokens=max_new_tokens)


def _run(file: Path, digest: str) -> ModuleType:
    """The file as a module; run once for each content.

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
            f"method.path={file}: {type(error).__name__}: {error}{line_in(file, error)}; mend it"
        ) from error
    return module


def line_in(file: Path, error: BaseException) -> str:
    """`` (my_rule.py, line 3)`` where the error passed through ``file``, else nothing."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == file.name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" ({file.name}, line {line})"


def _only_method(module: ModuleType, name: str) -> str:
    """The name of the one method in the file.

    Raises:
        UserError: there is none, there are several, one learns first, or a contrast lacks its second prompt.
    """
    found = [kind for kind in ARGUMENTS if callable(getattr(module, kind, None))]
    classes = {
        kind: value
        for kind, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    if learning := [kind for kind, value in classes.items() if hasattr(value, "learn")]:
        raise _learns(name, learning[0])
    found += [kind for kind, value in classes.items() if hasattr(value, "generate")]
    if len(found) != 1:
        there = f"there are {', '.join(found)}" if found else "there is none"
        known = ", ".join(f"{kind}({arguments})" for kind, arguments in ARGUMENTS.items())
        raise UserError(
            f"{name}: a file has one method and {there}; it is a function {known}, or a class with generate(vlm, "
            "prompts, *, max_new_tokens)"
        )
    if found == ["contrast"] and not callable(getattr(module, "second", None)):
        raise UserError(
            f"{name}: contrast needs a function second(prompt) beside it, which returns the prompt of the second branch"
        )
    return found[0]


def _learns(name: str, kind: str) -> UserError:
    return UserError(
        f"{name}: {kind} learns first; name it by _target_ in a FOLDER/method/NAME.yaml of your own, and give "
        "--config-dir FOLDER method=NAME"
    )
