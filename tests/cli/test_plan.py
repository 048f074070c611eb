"""`covist plan` reproduces the schedule table and the FLOPs column of the paper."""

import pytest

NEXT = ("--preset", "llava-next-7b", "--text", "61.63", "--newlines", "48", "--tokens", "2880")


@pytest.mark.parametrize(
    ("strategy", "budget", "teraflops"),
    [
        ("fixed", 2880, 43.408),
        ("fixed", 640, 10.004),
        ("fixed", 320, 5.661),
        ("fixed", 160, 3.530),
        ("pro", 640, 10.058),
        ("pro", 320, 5.675),
        ("pro", 160, 3.534),
    ],
)
def test_flops_column_of_the_efficiency_table(covist, strategy, budget, teraflops):
    plan = covist("plan", *NEXT, "--strategy", strategy, "--budget", budget, "--json").json
    assert round(plan["flops"] / 1e12, 3) == teraflops


@pytest.mark.parametrize(("budget", "mebibytes"), [(2880, 1494.82), (640, 374.82), (320, 214.82), (160, 134.82)])
def test_cache_column_of_the_efficiency_table(covist, budget, mebibytes):
    plan = covist("plan", *NEXT, "--strategy", "pro", "--budget", budget, "--json").json
    assert plan["kv_bytes"] / 2**20 == pytest.approx(mebibytes, abs=0.011)


@pytest.mark.parametrize(
    ("preset", "budget", "runs", "mean"),
    [
        ("llava-1.5-7b", 192, [(14, 288), (10, 173), (8, 48)], 192.0625),
        ("llava-1.5-7b", 128, [(14, 192), (10, 115), (8, 32)], 127.9375),
        ("llava-1.5-7b", 64, [(14, 96), (10, 58), (8, 16)], 64.125),
        ("llava-1.5-13b", 192, [(18, 288), (12, 168), (10, 48)], 192),
        ("llava-1.5-13b", 128, [(18, 192), (12, 112), (10, 32)], 128),
        ("llava-1.5-13b", 64, [(18, 96), (12, 56), (10, 16)], 64),
        ("llava-next-7b", 640, [(14, 960), (10, 576), (8, 160)], 640),
        ("llava-next-7b", 320, [(14, 480), (10, 288), (8, 80)], 320),
        ("llava-next-7b", 160, [(14, 240), (10, 144), (8, 40)], 160),
        ("qwen2.5-vl-7b", 512, [(12, 768), (9, 469), (7, 128)], 511.9),
        ("qwen2.5-vl-7b", 256, [(12, 384), (9, 235), (7, 64)], 256.1),
        ("qwen2.5-vl-7b", 128, [(12, 192), (9, 117), (7, 32)], 127.9),
    ],
)
def test_schedule_table(covist, preset, budget, runs, mean):
    plan = covist("plan", "--preset", preset, "--budget", budget, "--strategy", "pro", "--json").json
    assert plan["tokens_per_layer"] == [count for layers, count in runs for _ in range(layers)]
    assert plan["mean_tokens"] == pytest.approx(mean, abs=0.05)


def test_layers_alone_are_enough(covist):
    plan = covist("plan", "--layers", 32, "--budget", 64, "--json").json
    assert plan["tokens_per_layer"] == [64] * 32
    assert plan["kv_ratio"] == pytest.approx((64 + 64) / (64 + 576))


def test_a_share_is_taken_of_the_image(covist):
    assert covist("plan", "--budget", "11%", "--json").json["budget"] == 63


def test_the_table_names_stages_and_savings(covist):
    ran = covist("plan", "--budget", 64, "--strategy", "pro")
    assert ran.code == 0
    for text in ("0-13", "14-23", "24-31", "96", "58", "16", "KV cache", "%"):
        assert text in ran.stdout


def test_any_method_can_be_planned_and_published_counts_show_their_true_layer_mean(covist):
    """PriorTR: all tokens in three layers, then K."""
    means = {
        budget: covist("plan", "--method", "priortr:counts=nominal", "--budget", budget, "--json").json["mean_tokens"]
        for budget in (192, 128, 64)
    }
    assert means == {192: 228, 128: 170, 64: 112}
    ran = covist("plan", "--method", "priortr:counts=nominal", "--budget", 192)
    assert "0-2" in ran.stdout and "228" in ran.stdout and "a layer mean of 228.0" in ran.stderr
    assert covist("plan", "--method", "priortr", "--budget", 192).stderr == ""


def test_a_budget_below_the_reach_of_a_short_decoder_is_said(covist):
    ran = covist("plan", "--method", "priortr", "--budget", 64, "--layers", 8)
    assert "cannot reach a budget of 64" in ran.stderr and "72.9" in ran.stderr and "72.875" in ran.stdout


def test_prefill_tokens_and_cached_tokens_are_shown_separately(covist):
    ran = covist("plan", "--method", "ivc-prune", "--budget", 192)
    assert "cached, layer mean" in ran.stdout
    plan = covist("plan", "--method", "ivc-prune", "--budget", 192, "--json").json
    assert plan["mean_tokens"] > 300 and plan["mean_cached_tokens"] == pytest.approx(192, abs=0.5)
    assert plan["kv_ratio"] < plan["flops_ratio"]
    assert (plan["method"], plan["strategy"]) == ("ivc-prune", None)


def test_a_plan_is_for_a_strategy_or_a_method(covist):
    ran = covist("plan", "--method", "fastv", "--strategy", "pro")
    assert ran.code == 2 and "not both" in ran.stderr
    assert covist("plan", "--method", "divprune", "--budget", "auto").code == 2


def test_a_checkpoint_is_planned_by_its_configuration_alone(covist, tmp_path):
    """The default configuration is that of LLaVA-1.5-7B."""
    from transformers import LlavaConfig

    LlavaConfig().save_pretrained(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["config.json"]
    ran = covist("plan", "--model", tmp_path / "mine", "--budget", 64, "--strategy", "pro", "--json")
    published = covist("plan", "--budget", 64, "--strategy", "pro", "--json").json
    assert ran.json == {**published, "geometry": "mine"}
    assert "planned for an image of 576 tokens" in ran.stderr
    own = covist("plan", "--model", tmp_path / "mine", "--budget", "10%", "--tokens", 1000, "--json")
    assert own.json["budget"] == 100 and own.stderr == ""


def test_images_of_a_checkpoint_are_counted_by_its_processor(covist, model_folder):
    ran = covist("plan", "--model", model_folder)
    assert "planned for an image of 576 tokens (1024 x 768, by the checkpoint's processor)" in ran.stderr
    assert "budget 64 of 576" in ran.stdout and "0-3" in ran.stdout


def test_a_plan_is_for_a_preset_or_a_checkpoint(covist, tmp_path):
    ran = covist("plan", "--model", tmp_path, "--preset", "llava-1.5-7b")
    assert ran.code == 2 and "either --preset or --model" in ran.stderr
    assert "has no config.json" in covist("plan", "--model", tmp_path).stderr
