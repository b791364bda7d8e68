"""The recorder's masses and maps are eager attention's, and the model does not notice it."""

import pytest
import torch

from interp.attention import record as capture
from interp.attention.record import Queries, record_attention
from interp.attention.tables import image_share
from interp.errors import UserError
from interp.hooks.attention import intercept
from interp.hooks.forward import paused
from interp.segments import SEGMENTS, segment
from interp.vlm import VLM
from tests.families import FAMILIES
from tests.interp.eager import eager_weights, real_logits

TOLERANCE = 1e-5


def piece_errors(record, weights):
    """Largest difference of each recorded forward's masses from eager weights summed by segment."""
    width = record.pieces[0].width
    codes = torch.tensor([[SEGMENTS.index(label) for label in row.labels] for row in record.rows])
    for step, piece in enumerate(record.pieces):
        for i, layer in enumerate(piece.layers):
            eager = weights[layer][step]
            total = width + step
            keys = torch.arange(total - eager.shape[3], total)  # a sliding cache holds the newest alone
            kinds = torch.full((len(codes), total), SEGMENTS.index("generated"))
            kinds[:, :width] = codes
            one_hot = torch.nn.functional.one_hot(kinds[:, keys], len(SEGMENTS)).float()
            expected = torch.einsum("bhqk,bks->bhqs", eager, one_hot)
            places = torch.tensor(piece.columns) - (total - eager.shape[2])
            difference = (piece.mass[i] - expected[:, :, places]).abs().amax((1, 3))
            yield float(difference[piece.real].max())


@pytest.mark.contract
@pytest.mark.parametrize(
    ("few", "held"), [(0, None), (10**6, None), (10**6, 0)], ids=["kernel", "rows", "rows of one layer"]
)
def test_masses_and_maps_equal_eager_while_generating(family, prompts, few, held, monkeypatch):
    """Left padding, grouped keys, sliding windows, bidirectional images, a KV cache: as each family has them."""
    monkeypatch.setattr(capture, "FEW", few)
    monkeypatch.setattr(capture, "HELD", capture.HELD if held is None else held)
    with record_attention(family, queries=Queries.ALL) as record:
        answers = family.generate(prompts, max_new_tokens=5)
    monkeypatch.setattr(capture, "FEW", 16)
    with record_attention(family, maps=Queries.GENERATED) as mapped:
        family.generate(prompts, max_new_tokens=5)
    with eager_weights(family) as weights:
        eager_answers = family.generate(prompts, max_new_tokens=5)
    assert answers.token_ids == eager_answers.token_ids
    assert len(record.pieces) == len(weights[0]) == max(map(len, answers.token_ids))
    assert max(piece_errors(record, weights)) < TOLERANCE
    assert {(m.row, m.step) for m in mapped.maps} == {(r, s) for r in (0, 1) for s in range(len(answers.token_ids[r]))}
    for found in mapped.maps:
        for i, layer in enumerate(found.layers):
            eager = weights[layer][found.step][found.row, :, -1]
            row = found.weights[i]
            assert torch.allclose(row[:, -eager.shape[1] :], eager, atol=TOLERANCE)
            assert not row[:, : -eager.shape[1]].any()


def test_logits_and_tokens_are_the_native_ones(family, prompts):
    encoded = family.encode(prompts)
    segments = segment(family, prompts, encoded)
    native, answers = real_logits(family, encoded), family.generate(prompts, max_new_tokens=5)
    for queries in (Queries.ALL, Queries.GENERATED):
        with record_attention(family, queries=queries, maps=Queries.VERDICT, segments=segments):
            logits, recorded = real_logits(family, encoded), family.generate(prompts, max_new_tokens=5)
        assert torch.allclose(logits, native, atol=TOLERANCE)
        assert recorded.token_ids == answers.token_ids
        assert torch.allclose(recorded.margins, answers.margins, atol=TOLERANCE)


def test_steps_count_from_the_verdict(vlm, prompts):
    width = vlm.encode(prompts)["input_ids"].shape[1]
    steps = {}
    for queries in (Queries.VERDICT, Queries.GENERATED, Queries.ALL, [-1, 2]):
        with record_attention(vlm, queries=queries) as record:
            ids = vlm.generate(prompts, max_new_tokens=4).token_ids
        table = record.masses
        steps[str(queries)] = {row: sorted(set(group["step"])) for row, group in table.groupby("row")}
        assert (table["query"] - table["step"] == width - 1).all()
    lengths = [len(row) for row in ids]
    real = [sum(label != "padding" for label in row.labels) for row in record.rows]
    assert lengths == [2, 4]  # the first answer ends early: its later queries mean nothing
    assert steps["Queries.VERDICT"] == {0: [0], 1: [0]}
    assert steps["Queries.GENERATED"] == {0: [0, 1], 1: [0, 1, 2, 3]}
    assert steps["Queries.ALL"] == {r: list(range(1 - real[r], lengths[r])) for r in (0, 1)}
    assert steps["[-1, 2]"] == {0: [-1], 1: [-1, 2]}


def test_the_table_is_tidy_and_sums_to_one(family, prompts):
    with record_attention(family, queries=Queries.ALL) as record:
        family.generate(prompts, max_new_tokens=3)
    table = record.masses
    assert list(table) == ["row", "step", "query", "layer", "head", "segment", "tokens", "mass"]
    keys = ["row", "step", "layer", "head"]
    assert not table.duplicated([*keys, "segment"]).any()
    assert table.groupby(keys)["mass"].sum().sub(1).abs().max() < TOLERANCE
    assert table.loc[table["segment"] == "padding", "mass"].abs().max() < 1e-6
    assert table.loc[table["tokens"] == 0, "mass"].abs().max() < 1e-6
    generated = table[(table["segment"] == "generated") & (table["head"] == 0) & (table["layer"] == 0)]
    assert (generated["tokens"] == generated["step"].clip(lower=0)).all()
    images = table[(table["segment"] == "image_0") & (table["step"] == 0)]
    if family.module_map.cross_attended:  # not applicable is not zero
        assert images["mass"].isna().all()
        assert image_share(table)["share"].isna().all()
        return
    counts = [len(row.columns("image_0")) for row in record.rows]
    assert set(zip(images["row"], images["tokens"], strict=True)) == set(enumerate(counts))


def test_inputs_encoded_before_need_their_segments(family, prompts):
    encoded = family.encode(prompts)
    with pytest.raises(UserError, match=r"of no batch the recorder knows.*segments="), record_attention(family):
        family.generate(prompts, encoded=encoded, max_new_tokens=2)
    others = segment(family, prompts[::-1], family.encode(prompts[::-1]))  # as wide, but not what is asked
    with pytest.raises(UserError, match="of no batch"), record_attention(family, segments=others):
        family.generate(prompts, encoded=encoded, max_new_tokens=2)
    segments = segment(family, prompts, encoded)
    with record_attention(family, queries=Queries.VERDICT, segments=segments) as record:
        family.generate(prompts, encoded=encoded, max_new_tokens=2)
    assert sorted(set(record.masses["row"])) == [0, 1]


def test_a_second_branch_is_told_apart_by_its_cache_or_left_out(vlm, prompts):
    """As contrastive decoding runs: another forward of the same text after each step."""
    encoded = vlm.encode(prompts)
    noised = {**encoded, "pixel_values": torch.zeros_like(encoded["pixel_values"])}
    segments = segment(vlm, prompts, encoded)

    def run(pause):
        with record_attention(vlm, queries=[0, 1], segments=segments) as record, torch.no_grad():
            clean = vlm.model(**encoded, use_cache=True)
            if pause:
                with paused():
                    other = vlm.model(**noised, use_cache=True)
            else:
                other = vlm.model(**noised, use_cache=True)
            ids = torch.tensor([[23], [23]])
            vlm.model(input_ids=ids, past_key_values=clean.past_key_values)
            if not pause:
                vlm.model(input_ids=ids, past_key_values=other.past_key_values)
        return record.masses

    alone, both = run(pause=True), run(pause=False)
    assert len(both) == 2 * len(alone)
    order = ["row", "step", "layer", "head", "segment"]
    first = both[both["row"] < 2].sort_values(order)["mass"].to_numpy()
    assert first == pytest.approx(alone.sort_values(order)["mass"].to_numpy(), abs=1e-6)
    second = both[both["row"] >= 2].sort_values(order)["mass"].to_numpy()
    assert abs(first - second).max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_few_queries_are_upcast(dtype, prompts):
    model, processor = FAMILIES["llava_next"]()
    vlm = VLM(model.to(dtype), processor)
    encoded = vlm.encode(prompts)
    segments = segment(vlm, prompts, encoded)
    exact = {}

    def reference(call):
        rows = torch.einsum("bhqd,bhkd->bhqk", call.query.double(), call.key.double().repeat_interleave(2, 1))
        mask = call.allowed()
        rows = (rows * call.scaling).masked_fill(~mask, float("-inf")).softmax(-1)
        exact[call.layer] = torch.einsum("bhqk,bks->bhqs", rows, segments.indicator(0, mask.shape[-1]).double())

    errors = {}
    for queries in (Queries.VERDICT, Queries.ALL):
        with intercept(vlm, observe=reference), record_attention(vlm, queries=queries, segments=segments) as record:
            real_logits(vlm, encoded)
        piece = record.pieces[0]
        assert piece.mass.dtype == torch.float32
        off = [(piece.mass[i] - exact[i][:, :, list(piece.columns)]).abs().amax((1, 3)) for i in range(2)]
        errors[queries] = max(float(difference[piece.real].max()) for difference in off)
    assert errors[Queries.VERDICT] < 1e-6
    assert 1e-6 < errors[Queries.ALL] < (1e-2 if dtype == torch.bfloat16 else 2e-3)


def test_bad_input_names_what_is_known(vlm, prompts):
    with pytest.raises(UserError, match=r"step -40 lies before a prompt of 22 columns; .* back to -21"):
        with record_attention(vlm, queries=[0, -40]):
            vlm.generate(prompts)
    with pytest.raises(UserError, match="attention ran outside a forward of the whole model"):
        with record_attention(vlm):
            vlm.model.model(**vlm.encode(prompts))
    with pytest.raises(UserError, match="static cache"), record_attention(vlm):
        vlm.generate(prompts, cache_implementation="static", disable_compile=True)
    with record_attention(vlm, layers=[1]) as record:
        vlm.generate(prompts, max_new_tokens=1)
    assert set(record.masses["layer"]) == {1}


def test_a_layer_with_an_attention_of_its_own_is_named(vlm, prompts):
    """Remote code may switch its config and still not look its attention up."""
    layer = vlm.model.model.language_model.layers[1]
    layer.self_attn.forward = lambda hidden_states, **kwargs: (torch.zeros_like(hidden_states), None)
    with pytest.raises(UserError, match=r"layer 1 of tiny attends without .* attn_implementation='eager'"):
        with record_attention(vlm):
            vlm.generate(prompts)
