"""Looks inside a vision-language model: what it attends to, what its layers hold, and what changes its answer.

Importing this package loads no torch; each name is imported when it is first used.

Models and prompts
    load                  a model by ``organism:<name>``, folder, hub id or ``ModelConfig``
    VLM                   model + processor + layout: ``encode``, ``generate``, ``score``
    ModelConfig           which checkpoint, and how to load it
    Prompt, Generation    one question; the answers to a batch of them, with Yes/No margins
    Metric, logit_difference   what tools measure: the Yes/No margin, or any function of the first token's logits
    segment               which token is image, question, system text, template or sink
    float32_head, native_head       logits before they are rounded to the model's type; why they cannot be had
    UserError             what every function here raises for a mistake of its caller

Attention
    record_attention, Queries, paused   segment masses and attention maps while the model runs
    image_share, normalised             share of attention on the picture; other normalisations
    weights_of, patch_map, word_masses  one map, averaged; laid over the picture; summed by word
    check_recorder                      does the recorder agree with eager attention on this model?

Self-check
    prove, SelfCheck      do the tools agree with plain forwards of this model, and which may be trusted on it?

Interventions
    knockout              cuts attention edges between segments
    knockout_effect       what that does to the margin: in all layers, by window, by head
    edit_residual, edit_activations   changes hidden states; what attention, MLPs or heads compute
    part_effects, Part    what every head and MLP does to the margin
    patch, misaligned     activation patching between pairs of prompts: of the residual stream, attention, MLPs, heads;
                          why a pair cannot be patched

Reading hidden states
    residuals, activations   hidden states by place and layer; what attention, MLPs or heads compute
    logit_lens            the Yes/No margin and the likeliest tokens at every layer
    probe, Probe          how well a linear probe reads a label, on held-out groups
    fit_direction, Direction              a direction for a label, with its held-out accuracy
    project               projections on a direction
    save_directions, load_directions             directions in a safetensors file

Attribution and figures
    direct_logit_attribution   what each head and MLP writes into the margin; ranks heads
    integrated_gradients       gradients of the margin by pixel and by token (captum)
    occlude_image, occlude_words          the margin without a region, without a word
    grey_out              a prompt with parts of its picture painted over
    image_overlay, word_bars, heat_grid, layer_groups   matplotlib figures of all of these
"""

# ruff: noqa: F401  the imports below are those that __getattr__ makes, when a name is first used
import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.attention.check import check_recorder
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import image_share, normalised, patch_map, weights_of, word_masses
    from interp.checkpoints.config import ModelConfig
    from interp.errors import UserError
    from interp.figures.attention import heat_grid, image_overlay, layer_groups, word_bars
    from interp.generation import Generation, Metric
    from interp.hooks.forward import paused
    from interp.hooks.residual import activations, edit_activations, edit_residual, residuals
    from interp.loading import load
    from interp.output_head import float32_head, native_head
    from interp.prompt import Prompt
    from interp.segments import segment
    from interp.selfcheck import SelfCheck, prove
    from interp.tools.attribution import grey_out, integrated_gradients, occlude_image, occlude_words
    from interp.tools.directions import (
        Direction,
        fit_direction,
        load_directions,
        project,
        save_directions,
    )
    from interp.tools.knockout import knockout, knockout_effect
    from interp.tools.lens import logit_lens
    from interp.tools.logit_attribution import direct_logit_attribution
    from interp.tools.part_effects import Part, part_effects
    from interp.tools.patching import misaligned, patch
    from interp.tools.probes import Probe, probe
    from interp.vlm import VLM, logit_difference


def module_of(file: str) -> dict[str, str]:
    """Return public name → the module that has it, by the ``if TYPE_CHECKING`` of a package's ``__init__.py``."""
    (block,) = (node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULE_OF = module_of(__file__)
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
