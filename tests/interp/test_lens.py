"""The lens: its last point is the score in every family; what one layer writes appears at the point after it."""

import numpy as np
import pytest
import torch

from interp.errors import UserError
from interp.lens import departs_at, departure, lens
from interp.vlm import VLM, Prompt
from tests import families
from tests.planted import MARGIN, Plan, coloured, planted
from tests.tiny import picture


def test_last_point_is_the_score(family: VLM, prompts: list[Prompt]) -> None:
    margins = lens(family, prompts)
    torch.testing.assert_close(margins[-1], family.score(prompts), atol=1e-5, rtol=0)
    assert not torch.allclose(margins[0], margins[-1])


def test_final_soft_cap_counts(prompts: list[Prompt]) -> None:
    vlm = VLM(*families.paligemma2())
    wide = lens(vlm, prompts)
    vlm.model.config.get_text_config().final_logit_softcapping = 0.05
    narrow = lens(vlm, prompts)
    torch.testing.assert_close(narrow[-1], vlm.score(prompts), atol=1e-5, rtol=0)
    assert (narrow[-1].abs() <= 0.1).all()
    assert not torch.allclose(wide[-1], narrow[-1], atol=1e-3)


def test_bfloat16_and_batches(vlm: VLM) -> None:
    vlm.model.bfloat16()
    prompts = [Prompt("Is this safe?" + " Yes" * i, picture(i)) for i in range(3)]
    together = lens(vlm, prompts)
    torch.testing.assert_close(together[-1], vlm.score(prompts), atol=1e-2, rtol=0)
    torch.testing.assert_close(lens(vlm, prompts, batch_size=1)[-1], together[-1], atol=0.1, rtol=0)
    assert together.dtype == torch.float32


def test_a_verdict_written_by_one_layer_appears_there(vlm: VLM, prompts: list[Prompt]) -> None:
    first, second = vlm.layout.module(vlm.model, "layers")
    with torch.no_grad():
        for module in (first.self_attn.o_proj, first.mlp.down_proj, second.self_attn.o_proj):
            module.weight.zero_()
    margins = lens(vlm, prompts)
    torch.testing.assert_close(margins[1], margins[0], atol=1e-6, rtol=0)
    assert ((margins[2] - margins[1]).abs() > 1e-3).all()


@pytest.mark.parametrize(("reads", "writes"), [(0, 1), (1, 3)])
def test_the_planted_margin_is_there_from_the_writing_layer_on(reads: int, writes: int) -> None:
    redness = torch.tensor([-1.0, 0.6, 1.0])
    prompts = [Prompt("Is this safe?", coloured(r)) for r in redness.tolist()]
    margins = lens(planted(Plan(reads=reads, writes=writes)), prompts)
    assert margins[: writes + 1].abs().max() < 1e-3
    for point in range(writes + 1, 5):
        torch.testing.assert_close(margins[point], MARGIN * redness, atol=0.05, rtol=0)


def test_points_and_places(vlm: VLM, prompts: list[Prompt]) -> None:
    every = lens(vlm, prompts)
    torch.testing.assert_close(lens(vlm, prompts, points=(2, 0)), every[[2, 0]])
    image = lens(vlm, prompts, place="image")
    assert image.shape == every.shape
    assert not torch.allclose(image, every, atol=1e-3)
    assert lens(vlm, prompts, points=(1,), place="system").isnan().tolist() == [[True, False]]


def split(n: int = 40) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Margins of two points, failures every fourth case, two strata; failures lie 1 lower at the second point alone."""
    rng = np.random.default_rng(3)
    failed, stratum = np.arange(n) % 4 == 0, np.arange(n) // (n // 2)
    margins = rng.normal(0, 0.1, (2, n)) + 5 * stratum
    margins[1] -= failed
    return torch.tensor(margins), failed, stratum


def test_departure_finds_the_planted_point() -> None:
    margins, failed, stratum = split()
    draws = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), size=200)
    found = departure(margins, failed, draws, strata=stratum)
    low, high = np.nanquantile(found.draws, (0.025, 0.975), axis=0)
    assert found.gap == pytest.approx([0, -1], abs=0.1)
    assert departs_at(low, high) == 1
    assert found.auroc[1] == 0.0
    assert 0.3 < found.auroc[0] < 0.7
    assert (found.failures, found.successes) == (10, 30)


def test_departure_once_is_the_difference_of_means() -> None:
    margins, failed, _ = split()
    found = departure(margins, failed, np.ones((1, 40)))
    expected = margins[:, failed].mean(1) - margins[:, ~failed].mean(1)
    assert found.gap == pytest.approx(expected.numpy())
    assert found.draws[0] == pytest.approx(found.gap)


def test_strata_keep_unlike_sentences_apart() -> None:
    """One template's cases nearly all fail and the other's never: the pooled gap is that of the templates."""
    margins = torch.tensor([[0.0, 0, 0, 0.2, 9, 9, 9, 9]])
    failed, stratum = [True, True, True, False, False, False, False, False], list("aaaabbbb")
    assert departure(margins, failed, np.ones((0, 8))).gap == pytest.approx([-7.24])
    found = departure(margins, failed, np.ones((0, 8)), strata=stratum)
    assert found.gap == pytest.approx([-0.2])
    assert (found.failures, found.successes) == (3, 1)


def test_a_resample_without_failures_has_no_gap() -> None:
    found = departure(torch.tensor([[1.0, 2, 3]]), [True, False, False], np.array([[0, 2, 1], [1, 1, 1]]))
    assert np.isnan(found.draws[0, 0])
    assert found.draws[1, 0] == pytest.approx(-1.5)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [([-1, 1, 1], [1, 2, 2], 1), ([1, 1], [2, 2], 0), ([-2, 1], [-1, 2], 1), ([1, -1], [2, 1], None), ([-2], [-1], 0)],
)
def test_departs_at(low: list[int], high: list[int], expected: int | None) -> None:
    assert departs_at(np.array(low, dtype=float), np.array(high, dtype=float)) == expected


def test_refusals() -> None:
    with pytest.raises(UserError, match="no stratum with both"):
        departure(torch.zeros(1, 3), [True] * 3, np.ones((1, 3)))
    with pytest.raises(UserError, match="other lengths"):
        departure(torch.zeros(1, 3), [True, False], np.ones((1, 3)))
