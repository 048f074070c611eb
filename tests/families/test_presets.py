"""Presets of models without a family file agree with what transformers makes of their configurations."""

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from covist.contract.text_config import geometry_of, text_config
from covist.families.presets import PRESETS
from covist.families.refusals import image_text_models
from covist.families.registry import geometry_named, presets
from covist.plan import make_plan

FOUR_TO_ONE = (["sliding_attention"] * 4 + ["full_attention"]) * 7
SCOUT = {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 16384}
# preset: (model type, published fields of the text configuration that are not transformers' defaults)
PUBLISHED = {
    "qwen3.5-9b": ("qwen3_5", {}),
    "qwen3.5-35b-a3b": ("qwen3_5_moe", {}),
    "gemma-3-4b": (
        "gemma3",
        {"num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240, "sliding_window": 1024},
    ),
    "gemma-4-26b-a4b": (
        "gemma4",
        {
            "num_hidden_layers": 30,
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "moe_intermediate_size": 704,
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "sliding_window": 1024,
        },
    ),
    "gemma-4-e2b": (
        "gemma4",
        {
            "num_hidden_layers": 35,
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
            "layer_types": FOUR_TO_ONE,
        },
    ),
    "glm-4.6v-flash": ("glm4v", {}),
    "glm-4.6v": ("glm4v_moe", {"head_dim": 128}),
    "kimi-k2.5": (
        "kimi_k25",
        {"num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1},
    ),
    "llama-4-scout": ("llama4", SCOUT),  # the expert and the shared one, as one MLP: no field gives the latter
    "lfm2-vl-450m": (
        "lfm2_vl",
        {
            "num_hidden_layers": 16,
            "hidden_size": 1024,
            "intermediate_size": 4608,
            "num_attention_heads": 16,
            "layer_types": ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
        },
    ),
    "molmo2-8b": ("molmo2", {}),
}


@pytest.mark.parametrize("name", [name for name, (kind, _) in PUBLISHED.items() if kind in image_text_models()])
def test_a_preset_costs_what_its_configuration_says(name):
    model_type, fields = PUBLISHED[name]
    default = text_config(CONFIG_MAPPING[model_type]())
    read = geometry_of(type(default)(**fields), name, tokens=geometry_named(name).tokens)
    for strategy in ("fixed", "pro"):
        ours, theirs = (make_plan(geometry, "20%", strategy) for geometry in (geometry_named(name), read))
        assert ours == theirs


def test_every_published_size_has_its_own_name_and_budgets_below_its_tokens():
    sizes = [geometry for geometries in PRESETS.values() for geometry in geometries]
    assert len({geometry.name for geometry in sizes}) == len(sizes)
    for geometry in sizes:
        assert presets()[geometry.name][0] == geometry
        assert 0 < min(geometry.budgets) <= max(geometry.budgets) < geometry.tokens
        assert len(geometry.pattern) in (1, 4, 6, geometry.layers)


def test_only_layers_with_attention_have_a_cache_that_shrinks():
    """Qwen3.5-9B: 8 of 32 layers; keys and values of 4 heads of 256 in two bytes."""
    plan = make_plan(geometry_named("qwen3.5-9b"), 128)
    assert plan.kv_bytes_uncompressed == 8 * (1024 + 64) * 2 * 4 * 256 * 2
    assert plan.kv_bytes == 8 * (128 + 64) * 2 * 4 * 256 * 2
    assert dict(plan.layer_kinds) == {"linear": 24, "full": 8}
