"""What contrasting costs a whole answer of the bundled organism, asked one case at a time, beside plain answering.

A decoded token of random weights (``vcd_variants``) cannot show what a branch saves that is left out where the choice
is certain: that depends on what a model says. Prompt, picture and noise are part of the time.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.bench.eval import EvalCases
from experiments.bench.harness import Turns, meter_for, timed
from experiments.bench.models import model_of
from experiments.bench.vcd_variants import VARIANTS, Batch, TokenTimes
from interp.prompt import Prompt
from interp.vlm import VLM
from mitigation.contrastive.corruption import diffuse_images
from mitigation.method import Baseline
from mitigation.vcd import VCD

LIMITS = (1, 24)  # tokens at most: a verdict, and all that the organism says
METHODS: dict[str, Any] = {
    "plain": Baseline(),
    "paired": VCD(branch="paired"),
    "lazy": VCD(branch="lazy"),
    "sequential": VCD(branch="sequential"),
}
LOOP = "two_forward"


class AnswerCost(NamedTuple):
    """Times over plain answering; each a median of rounds, a round being all cases. ``tokens`` is the mean length."""

    limit: int
    tokens: float
    paired_over_plain: float
    lazy_over_plain: float
    sequential_over_plain: float
    two_forward_over_plain: float
    plain_ms: float


def answer_costs(cases: int, *, device: str, seed: int, rounds: int = 5) -> list[AnswerCost]:
    """A row for each of ``LIMITS``, of ``cases`` cases of IconWorld."""
    loaded = EvalCases(cases).load()
    vlm = model_of("tiny", [], device=device, seed=seed)
    prompts = [Prompt(one.prompt, one.image.render(), key=one.id) for one in loaded.samples]  # type: ignore[union-attr]
    return [_row(vlm, prompts, limit, rounds) for limit in LIMITS]


def _row(vlm: VLM, prompts: list[Prompt], limit: int, rounds: int) -> AnswerCost:
    lengths: dict[str, list[int]] = {}

    def asking(name: str, method: Any) -> Callable[[], None]:
        def ask() -> None:
            each = [method.generate(vlm, [prompt], max_new_tokens=limit) for prompt in prompts]
            lengths[name] = [len(answer.token_ids[0]) for answer in each]

        return ask

    def loop() -> None:
        for prompt, length in zip(prompts, lengths["sequential"], strict=True):
            _looped(vlm, prompt, length)

    work = {name: asking(name, method) for name, method in METHODS.items()} | {LOOP: loop}
    for warm in work.values():
        warm()
    wait = meter_for(vlm.device).synchronise
    turns = Turns({name: timed(one, synchronise=wait) for name, one in work.items()})
    for _ in range(rounds):
        turns.run()
    ratios = {f"{name}_over_plain": turns.ratio(name, "plain") for name in work if name != "plain"}
    said = lengths["sequential"]
    each = 1000 * turns.median("plain") / len(prompts)
    return AnswerCost(limit=limit, tokens=sum(said) / len(said), plain_ms=each, **ratios)


def _looped(vlm: VLM, prompt: Prompt, tokens: int) -> str:
    """An answer of ``tokens`` tokens by the published loop, from the same picture and noise."""
    clean = vlm.encode([prompt])
    noised = diffuse_images(clean, [prompt.key], step=VCD().noise_step, seed=0, model=vlm.model)
    batch: Mapping[str, Any] = {**clean}
    ids = VARIANTS[LOOP](vlm.model, Batch(batch, noised), TokenTimes(), tokens).sequences
    return str(vlm.tokenizer.decode(ids[0, clean["input_ids"].shape[1] :], skip_special_tokens=True))
