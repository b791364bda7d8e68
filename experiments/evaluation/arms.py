"""Which arms can enter a study, given its benchmark, protocol and model; checked before any weights load.

Decided by what methods declare (``mitigation.method.Abilities``), never by their classes.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from experiments.config import Run
from experiments.evaluation import training
from experiments.metrics.yes_no.comparison import ALL
from experiments.runs.launch import Launch
from experiments.types import Kind, Sample
from interp.errors import UserError
from mitigation.method import abilities

# Numbers that change what is computed, not how much of it: arms that differ in these alone take as long.
VALUES = ("alpha", "beta", "noise_step", "seed", "shift", "strength", "weight", "temperature", "top_p")
# Numbers that change how scores are made, not the prompts that are read for them.
OF_SCORES = ("alpha", "beta", "gamma", "shift", "weight", "temperature", "top_p")
NO_MARGIN = "it is a constant on the margin between Yes and No, which an open answer does not have"


def check_arms(run: Run) -> dict[str, str]:
    """The arms that cannot enter, each with the reason.

    Raises:
        UserError: the judge or the protocol does not fit the benchmark, an arm has nothing to be fitted on or trained
            on, or an arm needs more than an API gives.
    """
    _check_protocol(run)
    if run.judge.kind != run.benchmark.kind:
        raise UserError(
            f"judge {run.judge.name} reads {run.judge.kind} answers and {run.benchmark.name} asks for "
            f"{run.benchmark.kind}; leave judge out, or choose one of that kind in conf/judge"
        )
    excluded = not_applicable(run)
    if hasattr(run.judge, "check"):
        run.judge.check()
    entering = {arm: method for arm, method in run.arms.items() if arm not in excluded}
    for method in entering.values():
        if abilities(method).fitted_to:
            training.arms_needed(method, run.arm, run.arms)
    training.check(entering, run.benchmark)
    if run.endpoint is not None:
        if (size := Launch.current().size) > 1:
            raise UserError(
                f"WORLD_SIZE={size}: model {run.model.name} answers over an API, which one process asks with many "
                "requests at a time; start it with python -m experiments.run"
            )
        from experiments.api.model import check_methods

        check_methods(entering)
        run.endpoint.check()
    return excluded


def check_contrasts(run: Run, arms: Collection[str], kind: Kind) -> None:
    """Checks ``run.contrasts`` against the ``arms`` that there are.

    Raises:
        UserError: an entry names other than two arms, or one that is not there, or the benchmark is of refusals.
    """
    for pair in run.contrasts:
        if kind != "yes_no":
            raise UserError("contrasts are computed of yes/no benchmarks alone; leave contrasts out")
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UserError(f"contrasts={run.contrasts}: an entry is two arms, as in [[a,b]] for a minus b")
        if "baseline" in pair:
            raise UserError(f"contrasts={run.contrasts}: every arm is compared with the baseline anyway; leave it out")
        if unknown := [name for name, known in zip(pair, ({*arms, ALL}, arms), strict=True) if name not in known]:
            raise UserError(f"contrasts: there is no arm {unknown[0]!r}; known: {', '.join(arms)}; name one of them")


def _check_protocol(run: Run) -> None:
    """Refuses ``protocol=score`` where it cannot work.

    Raises:
        UserError: the benchmark has open answers, or the model or one of the two arms compared has no logits to score.
    """
    if run.protocol != "score":
        return
    if run.benchmark.kind != "yes_no":
        raise UserError(
            f"protocol=score reads Yes or No, and {run.benchmark.name} asks for {run.benchmark.kind} answers; "
            "leave protocol out"
        )
    if run.endpoint is not None:
        raise UserError(
            f"protocol=score reads logits, and {run.model.name} is only reached over an API; leave protocol out, or "
            "choose a model whose weights can be loaded"
        )
    for arm in ("baseline", run.arm):
        if reason := abilities(run.arms.get(arm)).unscored:
            raise UserError(f"protocol=score cannot ask {arm}, which is compared with all others: {reason}")


def undescribed(run: Run, samples: Sequence[Sample]) -> dict[str, str]:
    """The arms that are told what a picture shows, where the benchmark does not say it of every case.

    Raises:
        UserError: the arm under study is one of them.
    """
    without = [sample.id for sample in samples if sample.image is not None and not sample.described]
    if not without:
        return {}
    reason = f"{run.benchmark.name} does not say what its pictures show (case {without[0]} has no description)"
    arms = [arm for arm, method in run.arms.items() if abilities(method).needs_description]
    if run.arm in arms:
        raise UserError(f"{run.arm} cannot answer: {reason}; let the model describe them: method=verbalise")
    return dict.fromkeys(arms, reason)


def not_applicable(run: Run) -> dict[str, str]:
    """The arms that cannot enter, each with the reason, by the benchmark's kind and the protocol."""
    declared = {arm: abilities(method) for arm, method in run.arms.items()}
    if run.benchmark.kind != "yes_no":
        return {arm: NO_MARGIN for arm, can in declared.items() if can.yes_no_only}
    if run.protocol != "score":
        return {}
    return {arm: f"protocol=score: {can.unscored}" for arm, can in declared.items() if can.unscored}


def signature(method: Any, *, without: Collection[str] = (), values: Collection[str] = VALUES) -> str:
    """Equal for methods that compute as much: class and settings, but for those of ``values`` and ``without``."""
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        return repr(method)
    parts = []
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if field.name in without:
            continue
        shown = value is None if field.name in values else signature(value, without=without, values=values)
        parts.append(f"{field.name}={shown}")
    return f"{type(method).__qualname__}({', '.join(parts)})"


def by_prefill(arms: Mapping[str, Any]) -> list[str]:
    """The names of ``arms``, those that read the same prompts behind the first of them, the others in their order.

    So what one has read is needed by the next one, or not again (``interp.speed.prefills``).
    """
    groups: dict[str, list[str]] = {}
    for arm, method in arms.items():
        while (inner := getattr(method, "wraps", None)) is not None:
            method = inner
        groups.setdefault(signature(method, without=OF_SCORES, values=()), []).append(arm)
    return [arm for group in groups.values() for arm in group]
