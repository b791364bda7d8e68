"""How an answer is had: generated and read, or scored, that is read off the first token's logits in one forward.

Under ``score`` a method is asked for a single token and its verdict is the sign of the margin between Yes and No as
that arm sees it. What the model would have said is not seen: an answer that is neither Yes nor No gets a verdict all
the same. Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from experiments.external import Responses
from experiments.judges.judge import Judgement
from experiments.outcomes import Verdict
from experiments.vrtuning.arms import NewAdapter
from interp.errors import UserError
from interp.model_config import ModelConfig
from mitigation.controls import Sampled
from mitigation.vcd import VCD
from mitigation.vrtuning.method import VRTuning

if TYPE_CHECKING:
    from experiments.schema import Run
    from interp.generation import Generation

JUDGE = "margin"  # who gave a scored verdict


def check(run: "Run") -> None:
    """UserError where nothing can be scored: open answers, a model without logits, a method under study without."""
    if run.protocol != "score":
        return
    if run.benchmark.kind != "yes_no":
        raise UserError(
            f"protocol=score reads Yes or No, and {run.benchmark.name} asks for {run.benchmark.kind} answers; "
            "leave protocol out"
        )
    if not isinstance(run.model, ModelConfig):
        raise UserError(
            f"protocol=score reads logits, and {run.model.name} is only reached over an API; leave protocol out, or "
            "choose a model whose weights can be loaded"
        )
    for arm in ("baseline", run.arm):
        if reason := unscored(run.arms[arm]):
            raise UserError(f"protocol=score cannot ask {arm}, which is compared with all others: {reason}")


def unscored(method: Any) -> str | None:
    """Why a method cannot be scored; None where it can."""
    if isinstance(method, Responses):
        return "it brings responses made elsewhere, which have no logits"
    if isinstance(method, Sampled):
        return "its answers are sampled, and a score is drawn from nothing"
    if isinstance(method, VCD) and method.branch == "lazy":
        return "a lazy branch has no margins; method.branch=sequential has"
    if isinstance(method, VRTuning | NewAdapter) and method.answer == "last":
        return "its verdict comes after its own reasoning, which a single token does not have"
    within = getattr(method, "inner", None) or getattr(method, "method", None)
    return None if within is None else unscored(within)


def not_applicable(run: "Run") -> dict[str, str]:
    """Arms that do not enter under this run's protocol, and why."""
    reasons = {arm: unscored(method) for arm, method in run.arms.items()} if run.protocol == "score" else {}
    return {arm: f"protocol=score: {reason}" for arm, reason in reasons.items() if reason}


def as_scored(generation: "Generation") -> "Generation":
    """The same margins, each with the word that it stands for instead of the token that was generated.

    Raises:
        UserError: a margin that is not a number, so that there is nothing to read.
    """
    margins = [float(margin) for margin in generation.margins]
    if not all(map(isfinite, margins)):
        raise UserError("this arm gives no margins, so that protocol=score has nothing to read; leave protocol out")
    words = ["Yes." if margin > 0 else "No." for margin in margins]
    return replace(generation, texts=words, finished=[True] * len(words))


def judgement(word: str) -> Judgement:
    """The verdict of a scored answer."""
    return Judgement(Verdict.YES if word == "Yes." else Verdict.NO)


def mark(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of a scored answer says so."""
    return {**record, "protocol": "score"}
