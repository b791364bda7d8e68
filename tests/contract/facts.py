"""What a reader of the contract table must know of a family, and which models have no row, by the reason."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interp.vlm import VLM

NO_TEMPLATE = "no chat template in the published processors: model.chat_template gives one"
SOFT_CAP = "softcap: attention logits are capped, so recording computes float32 rows in chunks"
WITHOUT_ROW = {
    "the language model is an encoder-decoder": (
        *("florence2", "pix2struct", "pp_formulanet", "t5gemma2", "udop", "vision-encoder-decoder"),
    ),
    "no chat about one picture (captions, pages, videos, policies, proteins, robots, diffusion)": (
        *("blip", "blip-2", "diffusion_gemma", "evolla", "git", "got_ocr2", "instructblipvideo", "kosmos-2"),
        *("kosmos-2.5", "pi0", "pp_chart2table", "shieldgemma2"),
    ),
    "the vision tower needs timm, which is not installed": ("fast_vlm", "gemma3n", "perception_lm"),
    "no small model of it was made": (
        *("lighton_ocr", "mistral_large4", "exaone4_5", "cosmos3_edge", "glm_ocr", "glmga"),
        *("video_llama_3", "paddleocr_vl", "llava_next_video", "janus", "hyperclovax_vision_v2", "lfm3_vl"),
        *("cohere_compass", "hunyuan_vl", "cohere2_vision", "kimi_k25", "step3p7", "qianfan_ocr"),
        *(
            "granite_docling",
            "video_llava",
            "llama4",
            "minicpmv4_7",
            "granite4_vision",
            "ernie4_5_vl_moe",
            "lfm2_vl",
            "molmo2",
        ),
        *("chameleon", "cosmos3_omni", "deepseek_ocr2", "dots3_note", "emu3", "fuyu", "gemma4_unified", "glm5_next"),
        *("inkling2", "inkling_mm_model", "minicpm_ocr", "minimax_m3_vl", "mistral4", "muse_glimmer", "muse_spark"),
        *("nemotron_h_omni", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "qwen4_exp", "unlimited_ocr"),
    ),
}
"""The other image-text-to-text models of transformers 5.23, by why they have no row."""
WITHOUT_TEMPLATE = ("instructblip", "paligemma", "paligemma2", "idefics")


def notes(family: str, vlm: "VLM") -> list[str]:
    """Return what a reader must know of a family, and of the small model that stands for it here."""
    lines = [vlm.module_map.note] if vlm.module_map.note else []
    if getattr(vlm.model.config.get_text_config(), "attn_logit_softcapping", None):
        lines.append(SOFT_CAP)
    if family in WITHOUT_TEMPLATE:
        lines.append(NO_TEMPLATE)
    return lines
