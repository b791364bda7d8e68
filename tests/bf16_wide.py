"""A bfloat16 LLaVA of realistic width, 4,096, with logits of realistic size; thin everywhere else, so that it is cheap.

Yes and No have logits of 8 to 32, with margins of about a logit between them, as models of seven billion parameters do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import LlamaConfig, LlavaForConditionalGeneration

from interp.vlm import VLM, Prompt
from tests.tiny import picture, tiny_config, tiny_processor

WIDTH = 4096
WRITTEN = 0.3
LEVEL, SPREAD = 20.0, 1.0  # logits: the mean of Yes and No, and the standard deviation of their margin
THINGS = ("kill", "knife", "gun", "toy", "cake", "dog", "fire", "square", "circle", "red green", "blue circle", "Yes")


def wide_llava(seed: int = 0) -> VLM:
    """The model in eval mode; equal seeds give equal weights."""
    processor = tiny_processor()
    config = tiny_config(len(processor.tokenizer), processor.image_token_id)
    config.text_config = LlamaConfig(
        **config.text_config.to_dict()
        | {"hidden_size": WIDTH, "intermediate_size": 64, "head_dim": 16, "initializer_range": 0.05}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(config).eval()
        _thin(model)
    vlm = VLM(model, processor, name="wide")
    with torch.no_grad(), head_inputs(vlm) as states:
        vlm.score(cases(48))
    _set_head(vlm, torch.cat(states)[:, -1].float(), seed)
    return vlm


def _thin(model: LlavaForConditionalGeneration) -> None:
    """A projector without a square matrix of the full width, and layers that write little beside the embeddings."""
    projector = model.model.multi_modal_projector
    projector.linear_1 = nn.Linear(projector.linear_1.in_features, 16)
    projector.linear_2 = nn.Linear(16, WIDTH)
    with torch.no_grad():
        projector.linear_2.weight *= 0.2
        for layer in model.model.language_model.layers:
            layer.self_attn.o_proj.weight *= WRITTEN
            layer.mlp.down_proj.weight *= WRITTEN
    model.bfloat16()


def _set_head(vlm: VLM, states: Float[Tensor, "row width"], seed: int) -> None:
    """Writes a head whose Yes and No have the logits of the module's docstring for ``states``."""
    made = torch.Generator().manual_seed(seed)
    gram = states @ states.T  # the shortest row that gives all of them nearly the same logit
    ridge = 0.01 * gram.trace() / len(gram) * torch.eye(len(gram))
    level = states.T @ torch.linalg.solve(gram + ridge, torch.full((len(gram),), LEVEL))
    apart = torch.randn(WIDTH, generator=made)
    apart -= states.mean(0) * (states @ apart).mean() / states.mean(0).square().sum()
    apart *= SPREAD / 2 / (states @ apart).std()
    weight = torch.randn(vlm.model.lm_head.weight.shape, generator=made) * 3 / states.norm(dim=1).mean()
    for tokens, sign in zip(vlm.answer_ids, (1, -1), strict=True):
        weight[tokens] = level + sign * apart
    with torch.no_grad():
        vlm.model.lm_head.weight.copy_(weight)


def cases(number: int) -> list[Prompt]:
    """Questions of several lengths, each about a picture of its own."""
    return [Prompt(f"Is it safe to {THINGS[i % len(THINGS)]} the dog?", picture(i), key=f"{i}") for i in range(number)]


@contextmanager
def head_inputs(vlm: VLM) -> Iterator[list[Float[Tensor, "row column width"]]]:
    """The hidden states that each forward gave the head, in order."""
    found: list[Tensor] = []

    def note(module: nn.Module, arguments: tuple[Tensor]) -> None:
        if arguments[0].dim() == 3:  # not the states that the head is checked with
            found.append(arguments[0].detach())

    handle = vlm.model.lm_head.register_forward_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def exact_logits(vlm: VLM, states: Float[Tensor, "row column width"]) -> Float[Tensor, "row vocab"]:
    """What a float64 head gives for the last column of ``states``."""
    return states[:, -1].double() @ vlm.model.lm_head.weight.detach().double().T


def exact_margins(vlm: VLM, states: Sequence[Float[Tensor, "row column width"]]) -> Float[Tensor, "call row"]:
    """The margins of ``exact_logits``, of each call of the head."""
    yes, no = vlm.answer_ids
    logits = torch.stack([exact_logits(vlm, some) for some in states])
    return logits[..., yes].logsumexp(-1) - logits[..., no].logsumexp(-1)
