"""How often our own code makes the host wait for the device at each decoding step; runs apart, as ``job``.

``python -m tests.two_devices.waits [method ...]`` prints a line of JSON for each way to answer: the waits of one step
by place in the code, those of transformers, and the steps compared.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from interp.attention.record import Queries, record_attention
from interp.hooks.residual import last_layer
from interp.tools.knockout import knockout
from interp.vlm import VLM, Generation, Prompt
from mitigation.learned.projection import levelled
from tests.conftest import REPOSITORY
from tests.methods import METHODS
from tests.tiny import tiny_llava
from tests.two_devices.device import Unsupported, World, world
from tests.two_devices.models import asked, on_one_device

SHORT, LONG = 3, 6
OURS = tuple(str(REPOSITORY / package) for package in ("interp", "mitigation"))
Answer = Callable[[VLM, list[Prompt], int], Generation]


def by(method: Any) -> Answer:
    return lambda vlm, prompts, tokens: method.generate(vlm, prompts, max_new_tokens=tokens)


def recorded(method: Any, **options: Any) -> Answer:
    def run(vlm: VLM, prompts: list[Prompt], tokens: int) -> Generation:
        with record_attention(vlm, **options):
            return by(method)(vlm, prompts, tokens)

    return run


def cut(vlm: VLM, prompts: list[Prompt], tokens: int) -> Generation:
    with knockout(vlm, [("user", "verdict"), ("image", "generated")]):
        return by(METHODS["baseline"])(vlm, prompts, tokens)


def at_a_level(vlm: VLM, prompts: list[Prompt], tokens: int) -> Generation:
    """Edits the verdict's and the generated tokens' states, found by ``LayerStates.at``."""
    width = vlm.model.config.get_text_config().hidden_size
    with levelled(vlm, torch.ones(width), torch.zeros(last_layer(vlm))):
        return by(METHODS["baseline"])(vlm, prompts, tokens)


WAYS: dict[str, Answer] = {
    **{
        name: by(METHODS[name])
        for name in (
            *("baseline", "vcd_sequential", "vcd_paired", "constant_shift", "shifted_sequential"),
            *("shifted_paired", "cutoff", "prior_correction", "m3id", "sampled", "attention_steering_relative", "pai"),
            *("vista", "ablate_random"),
        )
    },
    "recorded": recorded(METHODS["baseline"]),
    "recorded_with_maps": recorded(METHODS["baseline"], maps=Queries.GENERATED),
    "recorded_vcd": recorded(METHODS["vcd_sequential"]),
    "knockout": cut,
    "levelled": at_a_level,
}


def counted(answer: Answer, vlm: VLM, here: World, tokens: int) -> tuple[int, Counter[str], int]:
    """Steps, our own waits by place, and those of others."""
    here.waits.clear()
    steps = max(map(len, answer(vlm, asked(64), tokens).token_ids))
    own = [wait for wait in here.waits if wait.where.startswith(OURS)]
    places = Counter(f"{wait.where.removeprefix(f'{REPOSITORY}/')} {wait.operation}" for wait in own)
    return steps, places, len(here.waits) - len(own)


def main(*methods: str) -> None:
    with world(values=True) as here:
        vlm = on_one_device(VLM(*tiny_llava(), name="tiny"))
        vlm.end_ids = {len(vlm.tokenizer) - 1}  # which it hardly says
        for name in methods or WAYS:
            (few, before, others), (many, after, all_others) = (
                counted(WAYS[name], vlm, here, tokens) for tokens in (SHORT, LONG)
            )
            per_step = {place: count / (many - few) for place, count in (after - before).items()}
            found = {"steps": [few, many], "own": per_step, "others": (all_others - others) / (many - few)}
            print(json.dumps({"method": name} | found), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Unsupported as error:
        print(json.dumps({"unsupported": str(error)}))
