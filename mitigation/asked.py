"""A VLM for a method to answer through, whose ``generate`` adds processors after the method's own."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
