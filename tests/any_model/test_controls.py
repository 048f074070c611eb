"""The checks can fail: each misses a step of the mechanism that is left out here."""

import torch
from support.checks import TOLERANCE
from support.zoo.animal import animal
from support.zoo.matrix import CLOSE

from covist.engine.attention.interface import MaskRule
from covist.engine.attention.mask import Terms
from covist.engine.passes import Stage
from covist.engine.sequence.cache import CompressedLayer

FAR = 100 * TOLERANCE


def test_masks_at_the_columns_of_the_shortened_sequence_are_noticed(compress, monkeypatch):
    at = MaskRule.at

    def by_columns(self, samples, queries, keys, *others):
        columns = torch.arange(keys.shape[1]).expand_as(keys)
        return at(self, samples, columns[:, -queries.shape[1] :], columns, *others)

    monkeypatch.setattr(MaskRule, "at", by_columns)
    assert CLOSE["reference"](compress, animal("gemma3")) > FAR


def test_attention_without_log_m_is_noticed(compress, monkeypatch):
    monkeypatch.setattr(Terms, "log_weights", lambda self, keys: torch.zeros_like(keys.log_weight))
    assert CLOSE["reference"](compress, animal("gemma3")) > FAR


def test_padding_masks_that_are_off_by_one_token_are_noticed(compress, monkeypatch):
    fit = Stage.fit

    def late(self, name, value, call, hidden):
        made = fit(self, name, value, call, hidden)
        is_padding = name == "attention_mask" and isinstance(made, torch.Tensor) and made.ndim == 2
        return made.roll(1, dims=1) if is_padding else made

    monkeypatch.setattr(Stage, "fit", late)
    assert CLOSE["batch"](compress, animal("qwen3_5")) > FAR


def test_caches_that_count_the_keys_they_hold_are_noticed(compress, monkeypatch):
    monkeypatch.setattr(CompressedLayer, "get_seq_length", lambda self: self.held)
    assert CLOSE["turn"](compress, animal("glm4v")) > FAR
