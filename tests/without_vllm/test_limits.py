"""What of an engine's configuration is refused, on stand-ins that have what vLLM's have."""

from types import SimpleNamespace as Config

import pytest

from covist.errors import CovistError
from covist.vllm.limits import position_room, refusals, require_room, require_tested


def engine(**changes):
    """A configuration that is served, with some fields changed: `part__field=value`."""
    config = Config(
        parallel_config=Config(pipeline_parallel_size=1),
        cache_config=Config(cache_dtype="auto"),
        model_config=Config(multimodal_config=Config(enable_mm_embeds=False, video_pruning_rate=None)),
        speculative_config=None,
    )
    places = {
        "parallel": config.parallel_config,
        "cache": config.cache_config,
        "multimodal": config.model_config.multimodal_config,
    }
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if part == "speculative":
            config.speculative_config = Config(method=value)
        else:
            setattr(places[part], field, value)
    return config


def test_an_ordinary_engine_is_served():
    assert refusals(engine()) == []
    assert refusals(engine(cache__cache_dtype="bfloat16")) == []


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_from_the_text_are_served(method):
    assert refusals(engine(speculative__method=method)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parallel__pipeline_parallel_size": 2}, "--tensor-parallel-size"),
        ({"cache__cache_dtype": "fp8"}, "--kv-cache-dtype auto"),
        ({"cache__cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype auto"),
        ({"cache__cache_dtype": "int8_per_token_head"}, "--kv-cache-dtype auto"),
        ({"speculative__method": "eagle3"}, "eagle3"),
        ({"speculative__method": "draft_model"}, "draft_model"),
        ({"multimodal__enable_mm_embeds": True}, "--enable-mm-embeds"),
        ({"multimodal__video_pruning_rate": 0.5}, "--video-pruning-rate"),
    ],
)
def test_incompatible_engine_options_are_named_in_one_sentence(change, words):
    (reason,) = refusals(engine(**change))
    assert words in reason and "\n" not in reason


def test_several_reasons_are_all_said():
    assert len(refusals(engine(parallel__pipeline_parallel_size=4, cache__cache_dtype="fp8"))) == 2


def test_a_prompt_may_leave_as_many_positions_empty_as_the_tables_have_room_for():
    room = position_room(1000) - 1000
    require_room(room, 1000)
    with pytest.raises(ValueError, match=f"leave {room + 1} positions empty, more than {room};"):
        require_room(room + 1, 1000)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.4.post1", "0.32.0+cpu"])
def test_the_series_that_was_tested_is_served(version):
    require_tested(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0", "dev"])
def test_other_releases_are_refused_with_what_to_install(version):
    with pytest.raises(CovistError, match="install vllm>=0.32,<0.33"):
        require_tested(version)


def test_a_method_without_a_bias_needs_no_exact_cache():
    assert refusals(engine(cache__cache_dtype="fp8"), biases=False) == []


def test_a_cache_that_cannot_hold_the_bias_is_refused_with_what_leaving_it_out_costs():
    (reason,) = refusals(engine(cache__cache_dtype="fp8"))
    assert "covist-max:features=embeddings,weights=off" in reason and "5 to 8 points" in reason
