"""Wide heads in vLLM's calling convention give what an explicit bias gives, over steps of any length."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covist.contract.method import AttentionRule
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable
from covist.formulas.cosine_series import fit_series
from covist.formulas.wide_heads import terms_in
from covist.vllm.attention import StepColumns, WideForward, columns_for, extend_rotary
from covist.vllm.rows import Side

HEADS, KV_HEADS, WIDTH, TOKENS = 4, 2, 16, 11
SCALING = 0.3  # not WIDTH ** -0.5: a model may have its own
TABLE = DistanceTable(10000.0 ** (-torch.arange(8) / 8))
AXES_TABLE = DistanceTable(10000.0 ** (-torch.arange(8) / 8), [0, 0, 1, 1, 1, 2, 2, 2])
GAINS = torch.tensor([0.6, 0.9, 1.1, 1.4])


class CachedAttention(nn.Module):
    """What vLLM's layer does for one request: keys and values of earlier steps stay, queries see those up to them."""

    def __init__(self, width: int):
        super().__init__()
        self._width, self._past = width, []

    def forward(self, query, key, value):
        self._past.append((key, value))
        pasts = zip(*self._past, strict=True)
        keys, values = (torch.cat(parts).view(-1, KV_HEADS, self._width).transpose(0, 1) for parts in pasts)
        queries = query.view(-1, HEADS, self._width).transpose(0, 1)
        seen = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool).tril(keys.shape[1] - queries.shape[1])
        output = F.scaled_dot_product_attention(
            queries[None], keys[None], values[None], seen, scale=SCALING, enable_gqa=True
        )
        return output[0].transpose(0, 1).flatten(1)


class WideLayer(WideForward, CachedAttention):
    """A layer whose heads are wider than the model's."""

    num_heads, num_kv_heads, scaling = HEADS, KV_HEADS, SCALING

    def __init__(self, step: StepColumns):
        super().__init__(WIDTH + step.codec.columns)
        self.head_size = self.head_size_v = WIDTH + step.codec.columns
        self.step, self.scale = step, GAINS


def wide(rule: AttentionRule, columns: int) -> tuple[StepColumns, WideLayer]:
    """An attention layer of `columns` further dimensions for a rule."""
    step = StepColumns(rule, columns, tokens=64, reach=4096, device=torch.device("cpu"))
    return step, WideLayer(step)


def a_prompt(axes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Side]:
    """Queries, keys, values, positions [n, axes] and what rows say: three words, five image tokens, three words."""
    query = torch.randn(TOKENS, HEADS * WIDTH)
    key, value = torch.randn(2, TOKENS, KV_HEADS * WIDTH).unbind()
    visual = torch.zeros(TOKENS, dtype=torch.bool)
    visual[3:8] = True
    weights = torch.where(visual, 1 + 7 * torch.rand(TOKENS), 1.0)
    places = torch.tensor([0, 1, 2, 5, 40, 41, 300, 578, 579, 580, 581])
    positions = places[:, None].expand(-1, axes).clone()
    if axes > 1:
        positions[3:8] = torch.tensor([[3, 3, 5], [3, 4, 9], [3, 9, 3], [3, 20, 20], [3, 20, 26]])
    return query, key, value, positions, Side(visual, weights.log(), positions * 0)


def explicit(query, key, value, positions, side, contribution) -> torch.Tensor:
    """Eq. 9 as it is printed, in float64: contribution(query, key) of every pair, times the gain of the head."""
    queries = query.double().view(-1, HEADS, WIDTH)
    keys, values = (
        part.double().view(-1, KV_HEADS, WIDTH).repeat_interleave(HEADS // KV_HEADS, 1) for part in (key, value)
    )
    output = torch.zeros(TOKENS, HEADS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        for place in range(TOKENS):
            logits = SCALING * keys[: place + 1, head] @ queries[place, head]
            for seen in side.visual[: place + 1].nonzero()[:, 0]:
                logits[seen] += GAINS[head].double() * contribution(place, seen)
            output[place, head] = logits.softmax(0) @ values[: place + 1, head]
    return output.flatten(1)


@pytest.mark.parametrize("steps", [[11], [5, 1, 4, 1], [1] * 11], ids=["at once", "in chunks", "one by one"])
@pytest.mark.parametrize("columns", [8, 32])
@pytest.mark.parametrize(
    ("table", "axes"), [(None, 1), (TABLE, 1), (AXES_TABLE, 3)], ids=["weights", "one axis", "three"]
)
def test_wide_heads_give_what_the_bias_gives(steps, columns, table, axes):
    rule = AttentionRule(GAINS[None], distances=(table,))
    step, layer = wide(rule, columns)
    query, key, value, positions, side = a_prompt(axes)
    series = None if table is None else fit_series(table, terms_in(columns))

    def contribution(place, seen):
        factor = 0 if series is None else series((positions[place] - positions[seen]).abs())
        return side.log_weight[seen].double() + factor

    found, first = [], 0
    for count in steps:
        part = slice(first, first + count)
        step.write(positions[part], Side(side.visual[part], side.log_weight[part], side.offsets[part]))
        found.append(layer(query[part], key[part], value[part]))
        first += count
    expected = explicit(query, key, value, positions, side, contribution)
    torch.testing.assert_close(torch.cat(found).double(), expected, atol=2e-5, rtol=1e-4)


def test_a_rule_without_weights_leaves_them_out():
    rule = AttentionRule(GAINS[None], weights=False, distances=(TABLE,))
    step, layer = wide(rule, 8)
    query, key, value, positions, side = a_prompt(1)
    step.write(positions, side)
    series = fit_series(TABLE, terms_in(8))
    expected = explicit(
        query, key, value, positions, side, lambda place, seen: series((positions[place] - positions[seen]).abs())
    )
    torch.testing.assert_close(layer(query, key, value).double(), expected, atol=2e-5, rtol=1e-4)


def test_text_alone_is_as_without_wide_heads():
    step, layer = wide(AttentionRule(GAINS[None], distances=(TABLE,)), 8)
    query, key, value, positions, side = a_prompt(1)
    step.write(positions, side)  # leaves columns behind that the next step must not see
    text = Side(side.visual & False, side.log_weight * 0, side.offsets)
    step.write(positions, text)
    torch.testing.assert_close(layer(query, key, value), CachedAttention(WIDTH)(query, key, value))


def test_columns_stay_where_they_are():
    step, _ = wide(AttentionRule(GAINS[None], distances=(TABLE,)), 8)
    before = step.queries.data_ptr(), step.keys.data_ptr()
    *_, positions, side = a_prompt(1)
    step.write(positions, side)
    assert (step.queries.data_ptr(), step.keys.data_ptr()) == before


# -- what backends take ------------------------------------------------------------------------------------------------


def layer_on(sizes: list[int], width: int = 128, supports=None) -> SimpleNamespace:
    backend = SimpleNamespace(
        get_supported_head_sizes=lambda: sizes,
        supports_head_size=supports or (lambda size: size in sizes),
        get_name=lambda: "CPU_ATTN",
    )
    return SimpleNamespace(head_size=width, attn_backend=backend)


@pytest.mark.parametrize(
    ("sizes", "width", "wanted", "columns"),
    [
        ([32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512], 128, None, 32),
        ([32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512], 32, None, 32),
        ([32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512], 128, 64, 64),
        ([64, 128, 256, 512], 128, None, 128),
    ],
)
def test_as_few_dimensions_are_added_as_the_backend_can_take(sizes, width, wanted, columns):
    assert columns_for([layer_on(sizes, width)], wanted) == columns


def test_a_backend_that_takes_multiples_of_eight_gets_eight():
    flash = layer_on([], supports=lambda size: size % 8 == 0 and size <= 256)
    assert columns_for([flash], None) == 8
    flash.head_size = 256
    with pytest.raises(CovistError, match="does not support head size 264 .256 and the bias., only other sizes"):
        columns_for([flash], None)


def test_dimensions_that_do_not_fit_are_refused_with_those_that_do():
    with pytest.raises(CovistError, match="CPU_ATTN does not support head size 136 .128 and the bias., only 64, 160;"):
        columns_for([layer_on([64, 160])], 8)


def test_layers_of_several_widths_get_as_many_dimensions_each():
    assert columns_for([layer_on([32, 64, 80, 96], 32), layer_on([32, 64, 80, 96], 64)], None) == 32


def test_layers_that_share_a_cache_bring_no_keys():
    class Outer(nn.Module):
        def forward(self, query, key, value):
            assert key is None and value is None
            return query

    class Shared(WideForward, Outer):
        num_heads, num_kv_heads, scaling, scale = HEADS, KV_HEADS, SCALING, GAINS

    step, _ = wide(AttentionRule(GAINS[None]), 8)
    layer, query = Shared(), torch.randn(TOKENS, HEADS * WIDTH)
    layer.step, layer.head_size, layer.head_size_v = step, WIDTH + 8, WIDTH + 8
    assert torch.equal(layer(query, None, None), query)


class Rotary:
    """A table as vLLM's rotary modules have it; a dynamic one depends on its own length."""

    def __init__(self, positions: int, dynamic: bool = False):
        self.max_position_embeddings, self._dynamic = positions, dynamic
        self.cos_sin_cache = self._compute_cos_sin_cache()

    def _compute_cos_sin_cache(self):
        base = self.max_position_embeddings if self._dynamic else 10.0
        angles = torch.arange(self.max_position_embeddings)[:, None] / base ** torch.arange(4)
        return torch.cat([angles.cos(), angles.sin()], -1)


def test_a_rotary_table_is_extended_and_keeps_what_it_had():
    rotary = Rotary(16)
    before = rotary.cos_sin_cache
    extend_rotary(rotary, 64)
    assert torch.equal(rotary.cos_sin_cache, Rotary(64).cos_sin_cache) and torch.equal(
        rotary.cos_sin_cache[:16], before
    )


def test_a_table_that_reaches_far_enough_is_left_alone():
    rotary = Rotary(64)
    before = rotary.cos_sin_cache
    extend_rotary(rotary, 32)
    assert rotary.cos_sin_cache is before and rotary.max_position_embeddings == 64


def test_a_table_that_depends_on_its_length_is_refused():
    with pytest.raises(CovistError, match="Rotary cannot be extended to 64 positions"):
        extend_rotary(Rotary(16, dynamic=True), 64)
