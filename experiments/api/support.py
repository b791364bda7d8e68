"""Which methods an endpoint can serve: those that work by words alone."""

from collections.abc import Mapping

from interp.errors import UserError
from mitigation.method import Baseline, Method
from mitigation.prompting import ContextPrompt, SafetyPrompt

BY_WORDS = (Baseline, ContextPrompt, SafetyPrompt)


def supported(method: Method) -> bool:
    """True where the method asks its model for nothing but ``generate(prompts, max_new_tokens=...)``.

    A method of another module says so with a class attribute ``by_words = True``.
    """
    return isinstance(method, BY_WORDS) or getattr(method, "by_words", False) is True


def check_methods(arms: Mapping[str, Method]) -> None:
    """Refuses arms that need weights or logits. Raises UserError naming the first."""
    for arm, method in arms.items():
        if not supported(method):
            known = ", ".join(kind.__name__ for kind in BY_WORDS)
            raise UserError(
                f"arm {arm} ({type(method).__name__}) needs the model's weights or logits, which no API gives; "
                f"over an API only {known} work; leave it out, or run an open model here"
            )
