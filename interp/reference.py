"""Plain forwards that tools are compared with, and the same numbers by other kernels.

A kernel that is wrong agrees with itself, so that comparing forwards of one device cannot show it. So the model is
computed again on the CPU in float32, and each linear map in float64.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

from interp.checkpoints.config import free_memory
from interp.hooks.residual import edit_residual
from interp.messages import Message
from interp.module_map import switched
from interp.prompt import Prompt, inverted
from interp.scaling import relative_error

if TYPE_CHECKING:
    from interp.vlm import VLM

BOUNDS = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Bounds of relative errors, by the type that was computed in."""
NOISES, KERNELS = 4.0, 2.0  # of one prompt twice in a batch; of eager attention, in half precision
MOST = 0.1  # of the bound that eager attention gives: it may differ by more than rounding
SAMPLED = 64  # rows of a linear map, and columns of its input, that are multiplied again


class Reference:
    """Plain forwards of ``vlm`` on ``prompts`` and on ``others``, the same questions about inverted pictures."""

    def __init__(self, vlm: "VLM", prompts: list[Prompt]) -> None:
        self.vlm, self.model, self.prompts, self.others = vlm, vlm.model, prompts, [inverted(p) for p in prompts]

    def logits(self, encoded: Mapping[str, Any]) -> Tensor:
        """Return the last column's logits by one plain forward, float32 on the CPU."""
        with torch.no_grad():
            return self.model(**encoded, use_cache=False).logits[:, -1].float().cpu()

    def each(self, prompts: list[Prompt]) -> Tensor:
        """Return the logits of each prompt, each in a forward without others."""
        return torch.cat([self.logits(self.vlm.encode([prompt])) for prompt in prompts])

    def edited(self) -> AbstractContextManager[None]:
        """Mix neighbouring numbers of the first layer's output, in every forward while open."""
        return edit_residual(self.vlm, lambda here: here.hidden + here.hidden.roll(1, -1) / 2, layers=[1])

    @cached_property
    def single(self) -> tuple[Tensor, Tensor]:
        """The logits of each prompt by forwards without others: as the model is, and under an open edit."""
        before = self.each(self.prompts)
        with self.edited():
            return before, self.each(self.prompts)

    @cached_property
    def bound(self) -> float:
        """How far the logits of two forwards may differ; rounding is measured (docs/gpu.md: 0.047 with 32 layers)."""
        twice, rounding = self.logits(self.vlm.encode(self.prompts[:1] * 2)), 0.0
        noise = relative_error(twice[:1], self.single[0][:1])
        if self.vlm.dtype != torch.float32:
            with switched(self.vlm.module_map.module(self.model, "language_model"), "eager"):
                rounding = relative_error(self.each(self.prompts[:1]), self.single[0][:1])
        return max(BOUNDS[self.vlm.dtype], NOISES * noise, min(MOST, KERNELS * rounding))

    @cached_property
    def both(self) -> tuple[Any, Any]:
        """Both prompts in one batch, which pads one of them: with their pictures, and with the others."""
        return self.vlm.encode(self.prompts), self.vlm.encode(self.others)

    @cached_property
    def chats(self) -> list[Prompt]:
        """Two conversations of different lengths, with two turns of the user and a picture in each."""
        second, answer = self.prompts[1], Message("assistant", ("I see.",))
        return [Prompt().with_turns((*first.turns, answer, *second.turns)) for first in self.prompts]

    @property
    def other_chats(self) -> dict[str, list[Prompt]]:
        """The conversations with another part, by what it is."""
        chats = {f"a black picture {n}": [chat.with_images(_black, only=[n]) for chat in self.chats] for n in (1, 2)}
        for name in ("user:1", "assistant:1"):
            chats[f"another {name}"] = [chat.with_parts({chat.parts[name][0]: "That is bad."}) for chat in self.chats]
        return chats

    def states(self, encoded: Any, modules: Mapping[Any, Any]) -> dict[Any, Tensor]:
        """Return what goes into and comes out of ``modules`` (name → module) in one forward."""
        seen: dict[Any, Tensor] = {}

        def keep(name: Any, module: Any, args: Any, kwargs: Any, output: Any) -> None:
            seen["into", name] = args[0] if args else kwargs.get("hidden_states")
            seen["out", name] = output[0] if isinstance(output, tuple) else output

        with ExitStack() as stack:
            for name, module in modules.items():
                stack.callback(module.register_forward_hook(partial(keep, name), with_kwargs=True).remove)
            self.logits(encoded)
        return seen


def _black(image: Image.Image) -> Image.Image:
    return Image.new("RGB", image.size)


def float32_copy(model: Any) -> Any:
    """Return a float32 copy of ``model`` on the CPU, made without memory of its device.

    None if the CPU's memory is too small, or weights are packed or offloaded.
    """
    from accelerate.hooks import remove_hook_from_module

    weights, memo = list(model.parameters()), dict[int, Tensor]()
    free = free_memory(torch.device("cpu"))
    if any(weight.is_meta or weight.dtype not in BOUNDS for weight in weights):
        return None
    if free is not None and free < 4 * sum(weight.numel() for weight in weights):
        return None
    for tensor in (*weights, *model.buffers()):
        moved = tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype)
        memo[id(tensor)] = nn.Parameter(moved, False) if isinstance(tensor, nn.Parameter) else moved
    return remove_hook_from_module(copy.deepcopy(model, memo), recurse=True)


@contextmanager
def products(model: Any, compare: Callable[[str, Tensor, Tensor], object]) -> Iterator[None]:
    """Give ``compare`` the name, output and float64 product of each linear map while open, some numbers of them."""

    def multiply(name: str, module: Any, args: Any, output: Tensor) -> None:
        if not module.weight.is_meta:
            weight, step = module.weight, max(1, len(module.weight) // SAMPLED)
            product = args[0].reshape(-1, weight.shape[1])[-SAMPLED:].cpu().double() @ weight[::step].cpu().double().T
            product += 0.0 if module.bias is None else module.bias[::step].cpu().double()
            compare(name, output.reshape(-1, len(weight))[-SAMPLED:, ::step], product)

    with ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            if type(module) is nn.Linear and module.weight.dtype in BOUNDS:
                stack.callback(module.register_forward_hook(partial(multiply, name)).remove)
        yield
