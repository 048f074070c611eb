"""Further head dimensions against the explicit bias of Eq. 9."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covist.formulas.attention import DistanceTable, attention_bias, log_contribution
from covist.formulas.cosine_series import CosineSeries, error_bound, fit_series
from covist.formulas.wide_heads import WideHeads, terms_in, widen
from formulas.inputs import generator

WIDTH = 32
THETA = 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
AXES = [0] * 4 + [1] * 6 + [2] * 6
TABLE, SEVERAL = DistanceTable(THETA), DistanceTable(THETA, AXES)
SERIES, PLANAR = fit_series(TABLE, 3, reach=1000), fit_series(SEVERAL, 3, reach=1000)
BOUND, PLANAR_BOUND = error_bound(SERIES, TABLE, 1000), error_bound(PLANAR, SEVERAL, 1000)


class Prompt:
    """Random states of a batch whose samples have their visual keys in different places, some without any."""

    def __init__(self, seed: int, batch: int = 2, heads: int = 4, kv_heads: int = 2, length: int = 24, axes: int = 1):
        g = generator(seed)
        draw = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
        self.query, self.key = draw(batch, heads, length, WIDTH), draw(batch, kv_heads, length, WIDTH)
        self.value = draw(batch, kv_heads, length, WIDTH)
        self.visual = (
            torch.rand(batch, length, generator=g) < torch.tensor([0.5, 0.0, 1.0])[torch.arange(batch) % 3, None]
        )
        self.log_weight = (1 + 7 * torch.rand(batch, length, generator=g)).log() * self.visual
        steps = torch.randint(1, 40, (batch, length), generator=g)
        self.positions = steps.cumsum(1)[..., None].expand(-1, -1, axes)  # [batch, length, axes]
        self.scale = 0.6 + 0.8 * torch.rand(heads, generator=g)
        self.scaling = float(torch.rand((), generator=g)) + 0.05

    def explicit(self, log_factor: Tensor | float = 0.0) -> Tensor:
        """The bias as it stands in Eq. 9, [batch, heads, q, k]."""
        contribution = log_contribution(self.log_weight[:, None], log_factor * self.visual[:, None])
        length = self.visual.shape[1]
        return attention_bias(self.scale, contribution[:, None], torch.zeros(length, length))

    def attend_explicitly(self, bias: Tensor) -> Tensor:
        """Causal attention in float64 with the bias in a mask."""
        future = torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1)
        states = (state.double() for state in (self.query, self.key, self.value))
        mask = bias.double().masked_fill(future, -torch.inf)
        return F.scaled_dot_product_attention(*states, attn_mask=mask, scale=self.scaling, enable_gqa=True)

    def columns(self, codec: WideHeads) -> tuple[Tensor, Tensor]:
        keys = codec.key_columns(self.log_weight, self.positions, self.visual)
        queries = codec.query_columns(self.scale, codec.query_waves(self.positions), self.scaling)
        return queries, keys[:, None]

    def attend_wide(self, codec: WideHeads) -> Tensor:
        """The same through a kernel that is given no mask."""
        queries, keys = self.columns(codec)
        query, key = widen(self.query, queries), widen(self.key, keys)
        value = F.pad(self.value, (0, codec.columns))
        wide = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scaling, enable_gqa=True)
        assert not wide[..., WIDTH:].any()
        return wide[..., :WIDTH]


def carried(prompt: Prompt, codec: WideHeads, dtype: torch.dtype = torch.float32) -> Tensor:
    """What the columns add to the logits, [batch, heads, q, k] in float64."""
    queries, keys = (part.to(dtype).double() for part in prompt.columns(codec))
    return prompt.scaling * queries @ keys.transpose(-1, -2)


@given(st.integers(0, 10_000), st.sampled_from([(4, 4), (4, 2), (6, 1)]), st.integers(1, 3))
@settings(deadline=None)
def test_the_weight_term_is_that_of_an_explicit_bias(seed, heads, batch):
    prompt = Prompt(seed, batch, *heads)
    wide = prompt.attend_wide(WideHeads(CosineSeries.zero()))
    torch.testing.assert_close(wide.double(), prompt.attend_explicitly(prompt.explicit()), atol=1e-5, rtol=0)


@given(st.integers(0, 10_000), st.sampled_from([8, 16]))
@settings(deadline=None)
def test_with_its_own_series_the_whole_term_is_that_of_an_explicit_bias(seed, columns):
    prompt = Prompt(seed)
    distances = (prompt.positions[:, :, None] - prompt.positions[:, None]).abs()
    expected = prompt.attend_explicitly(prompt.explicit(SERIES(distances).float()))
    torch.testing.assert_close(prompt.attend_wide(WideHeads(SERIES, columns)).double(), expected, atol=1e-5, rtol=0)


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_the_distance_term_stays_within_the_stated_bound(seed):
    prompt = Prompt(seed)
    along = prompt.positions[..., 0]
    error = (carried(prompt, WideHeads(SERIES)) - prompt.explicit(TABLE.log_factor(along, along))).abs()
    assert bool((error <= prompt.scale[:, None, None] * BOUND + 1e-5).all())


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_several_axes_stay_within_their_bound(seed):
    prompt = Prompt(seed, batch=1, axes=3)
    grid = torch.tensor([[0, r, c] for r in range(4) for c in range(4)])
    prompt.positions = torch.cat([grid, torch.arange(4, 12)[:, None].expand(-1, 3) * 60])[None]
    prompt.visual = torch.arange(24)[None] < 16
    prompt.log_weight = prompt.log_weight * prompt.visual
    error = carried(prompt, WideHeads(PLANAR)) - prompt.explicit(SEVERAL.log_factor(prompt.positions, prompt.positions))
    seen = torch.ones(24, 24, dtype=torch.bool).tril()
    assert bool((error.abs() <= prompt.scale[:, None, None] * PLANAR_BOUND + 1e-5)[..., seen].all())


@given(st.integers(0, 10_000), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@settings(deadline=None)
def test_text_keys_are_untouched(seed, dtype):
    prompt = Prompt(seed, batch=3)
    added = carried(prompt, WideHeads(SERIES), dtype)
    assert not added.masked_fill(prompt.visual[:, None, None], 0).any()
    assert added[2].all()  # every key of the third sample is visual


def rounding_bound(codec, dtype, log_weight):
    """How far rounding in `dtype` can move the bias of a key with this log m, per unit of gain.

    The weight of a key is split, so only the query's column is rounded, which is as accurate as rounding the bias
    itself to `dtype`. A wave is rounded on both sides.
    """
    kind = torch.finfo(dtype)
    unit = kind.eps / 2  # of normal numbers, relatively
    lowest = kind.tiny * kind.eps / 2  # of the smallest numbers, absolutely
    rest = unit * torch.finfo(torch.bfloat16).eps / 2
    weight = abs(log_weight + codec.series.constant) * (unit + (1 + unit) * rest)
    waves = float(codec.series.amplitudes.abs().sum()) * (2 * unit + unit**2)
    return weight + waves + codec.columns * lowest


@given(st.integers(0, 10_000), st.sampled_from([torch.bfloat16, torch.float16]))
@settings(deadline=None)
def test_half_precision_moves_the_bias_by_no_more_than_is_stated(seed, dtype):
    prompt, codec = Prompt(seed), WideHeads(SERIES)
    moved = (carried(prompt, codec, dtype) - carried(prompt, codec)).abs()
    for limit in (0.5, 8.0):
        light = (prompt.log_weight <= torch.tensor(limit).log())[:, None, None]
        allowed = prompt.scale[:, None, None] * rounding_bound(
            codec, dtype, torch.tensor(limit).log().clamp(min=0).item()
        )
        assert bool(((moved <= allowed + 1e-6) | ~light).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_weight_is_carried_as_precisely_as_a_bias_of_that_type(dtype):
    """The split leaves the rounding of the query alone, which is that of the bias itself."""
    weights = torch.linspace(1, 8, 400)
    codec, positions = WideHeads(CosineSeries.zero()), torch.zeros(400, 1, dtype=torch.long)
    keys = codec.key_columns(weights.log(), positions, torch.ones(400, dtype=torch.bool)).to(dtype).double().sum(-1)
    unit = torch.finfo(dtype).eps / 2
    assert float((keys - weights.log()).abs().max()) < 2.1 * unit * 2**-8
    assert rounding_bound(codec, dtype, 2.0) == pytest.approx(2.0 * unit, rel=2**-7)


def test_far_positions_lose_nothing():
    codec = WideHeads(SERIES)
    far, near = torch.tensor([[100_003], [100_100]]), torch.tensor([[3], [100]])
    ones = torch.ones(2, dtype=torch.bool)
    products = [codec.query_waves(p)[1] @ codec.key_columns(torch.zeros(2), p, ones)[0] for p in (far, near)]
    torch.testing.assert_close(*products, atol=1e-6, rtol=0)


def test_a_known_limit_gives_the_same_columns():
    positions = torch.tensor([[0], [9], [9000]])
    assert torch.equal(WideHeads(SERIES).query_waves(positions, limit=9000), WideHeads(SERIES).query_waves(positions))


def test_padding_may_have_any_position():
    assert WideHeads(SERIES).query_waves(torch.tensor([[-7]])).isfinite().all()


@pytest.mark.parametrize("columns", [0, 4, 12])
def test_columns_come_in_multiples_of_eight(columns):
    with pytest.raises(ValueError, match="WideHeads: columns must be a multiple of 8"):
        WideHeads(CosineSeries.zero(), columns)


def test_a_series_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="8 columns hold 3 cosines, but the series has 4"):
        WideHeads(fit_series(TABLE, 4, reach=50))
    assert WideHeads(fit_series(TABLE, 4, reach=50), 16).columns == 16
    assert [terms_in(columns) for columns in (8, 16, 32)] == [3, 7, 15]
