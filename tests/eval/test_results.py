import json
import sys
from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest
from PIL import Image

from covist.budget import Count, Coverage
from covist.eval.metrics import normalise
from covist.eval.records import ItemAnswers, Records, Run
from covist.eval.results import Difference, Results, _difference_dict
from covist.eval.statistics import Tally
from covist.eval.suite import load_suite
from covist.eval.tally import tally

SUITE = load_suite("scenes")
ITEMS = SUITE.items(6)
VANILLA, GOOD, BAD = Run("vanilla", Count(576)), Run("covist-fixed", Count(64)), Run("random", Count(64))


def answers(wrong_every):
    """Right answers, except that every `wrong_every`-th is wrong."""
    number, given = 0, {}
    for item in ITEMS:
        said = []
        for question in item.questions:
            number += 1
            said.append("nothing" if wrong_every and number % wrong_every == 0 else question.answer)
        given[item.number] = ItemAnswers(item.number, said, seconds=0.5, tokens=64.0)
    return given


@pytest.fixture
def results():
    records = Records(None, {"seed": 0})
    for run, wrong_every in ((VANILLA, 0), (GOOD, 9), (BAD, 2)):
        for answered in answers(wrong_every).values():
            records.add(run, answered)
    return Results.build(SUITE, ITEMS, [VANILLA, GOOD, BAD], records, seed=0)


@pytest.mark.parametrize("said", ["red", " Red. ", "RED"])
def test_case_space_and_a_full_stop_do_not_matter(said):
    assert normalise(said) == "red"


@pytest.mark.parametrize("said", ["red red", "dark red", "", "re"])
def test_anything_else_is_wrong(said):
    assert normalise(said) != "red"


def test_tally_counts_exact_matches_per_image_and_family():
    counted = tally(ITEMS, answers(wrong_every=3), SUITE.families)
    number = 0
    for row, item in enumerate(ITEMS):
        asked, right = dict.fromkeys(SUITE.families, 0), dict.fromkeys(SUITE.families, 0)
        for question in item.questions:
            number += 1
            asked[question.family] += 1
            right[question.family] += number % 3 != 0
        assert counted.asked[row].tolist() == list(asked.values())
        assert counted.right[row].tolist() == list(right.values())
    assert counted.asked.max() > 1  # a crowded scene asks for more than one group


def test_scores_are_percent_and_vanilla_retains_everything(results):
    vanilla, good, bad = results.scores
    assert (vanilla.accuracy, vanilla.retention) == (100, 100)
    assert 100 > good.accuracy > bad.accuracy > 0
    assert good.retention == pytest.approx(np.mean(list(good.families.values())))
    low, high = bad.retention_interval
    assert low < bad.retention < high


def test_paired_differences_are_those_of_the_scores(results):
    (difference,) = results.differences
    _, good, bad = results.scores
    assert (difference.method, difference.against, difference.budget) == ("random", "covist-fixed", Count(64))
    assert difference.retention == pytest.approx(bad.retention - good.retention)
    assert difference.interval[1] < 0 and difference.p_holm == difference.p < 0.05
    itself = results.difference("random", "random", 64)
    assert itself.retention == 0 and itself.interval == (0, 0) and not itself.is_clear


@pytest.mark.parametrize("images, clear", [(1, False), (6, False), (29, False), (30, True)])
def test_a_handful_of_images_makes_no_difference_clear(images, clear):
    """Even if it is the same in all of them."""
    apart = Difference("one", "other", 64, -25.0, (-25.0, -25.0), p=0.0, p_holm=0.0, images=images)
    assert (apart.is_clear, apart.is_clear_among_all) == (clear, clear)


@pytest.mark.parametrize("p, p_holm, marks", [(0.05, 0.2, (True, False)), (0.051, 0.051, (False, False))])
def test_a_difference_is_marked_clear_before_and_after_the_correction(p, p_holm, marks):
    apart = Difference("one", "other", 64, -25.0, (-50.0, -1.0), p, p_holm, images=40)
    assert (apart.is_clear, apart.is_clear_among_all) == marks


def test_a_difference_that_is_not_known_is_not_clear_and_leaves_the_others_alone(results):
    unknown = Difference("one", "other", 64, nan, (nan, nan), p=nan, p_holm=nan, images=40)
    assert not unknown.is_clear and not unknown.is_clear_among_all
    nothing = {run: Tally(0 * own.right, own.asked) for run, own in results.tallies.items()}
    (difference,) = replace(results, tallies=nothing).differences
    assert isnan(difference.p) and isnan(difference.p_holm) and not difference.is_clear
    assert _difference_dict(difference)["p"] is None


def test_a_difference_needs_both_methods(results):
    with pytest.raises(ValueError, match="'divprune' was not evaluated at a budget of 64"):
        results.difference("divprune", "random", 64)


def test_a_budget_is_judged_by_the_cache_and_both_means_are_shown():
    records = Records(None, {"seed": 0})
    late = Run("ivc-prune", Count(64))
    for item in ITEMS:
        said = [question.answer for question in item.questions]
        records.add(VANILLA, ItemAnswers(item.number, said, seconds=0.5, tokens=576.0))
        records.add(late, ItemAnswers(item.number, said, seconds=0.5, tokens=320.0, cached=64.25))
    results = Results.build(SUITE, ITEMS, [VANILLA, late], records, seed=0)
    score = results.scores[1]
    assert (score.mean_tokens, score.mean_cached_tokens, score.reached) == (320, 64.25, True)
    assert "| budget | mean tokens | mean cached | accuracy |" in results.to_markdown()
    assert "| ivc-prune | 64 | 320.0 | 64.2 |" in results.to_markdown()
    row = results.to_dict()["results"][1]
    assert (row["mean_tokens"], row["mean_cached_tokens"]) == (320, 64.25)


def test_published_counts_above_the_budget_are_shown_with_their_mean_and_not_ranked():
    records = Records(None, {"seed": 0})
    over = Run("priortr:counts=nominal", Count(192))
    for item in ITEMS:
        said = [question.answer for question in item.questions]
        records.add(VANILLA, ItemAnswers(item.number, said, seconds=0.5, tokens=576.0))
        records.add(over, ItemAnswers(item.number, said, seconds=0.5, tokens=228.0))
    results = Results.build(SUITE, ITEMS, [VANILLA, over], records, seed=0)
    assert "| priortr:counts=nominal | 192, nominal | 228.0 |" in results.to_markdown()
    assert "| priortr:counts=nominal | nominal; at 228.0 tokens: 100.0 [" in results.to_markdown()
    row = results.to_dict()["results"][1]
    assert row["nominal"] and not row["reached"] and results.differences == []
    assert (row["budget"], row["target"], row["counted_tokens"]) == (192, 192, 228)


def test_one_mean_is_shown_where_prefill_and_cache_agree(results):
    assert "mean cached" not in results.to_markdown() and results.scores[1].mean_cached_tokens == 64


def test_files_are_json_markdown_and_a_plot(results, tmp_path):
    results.write(tmp_path)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert set(stored) >= {"suite", "results", "differences", "versions"}
    assert [(row["method"], row["budget"]) for row in stored["results"]] == [
        ("vanilla", 576),
        ("covist-fixed", 64),
        ("random", 64),
    ]
    assert {"clear", "p", "p_holm", "clear_among_all"} <= set(stored["differences"][0])
    row = stored["results"][1]
    scores = {"accuracy", "retention", "families", "same_answers", "ci"}
    tokens = {"mean_tokens", "mean_cached_tokens", "target", "counted_tokens", "reached", "nominal"}
    assert set(row) == {"method", "budget", *tokens, *scores, "seconds_per_image", "times_mixed", "capped"}
    assert set(row["families"]) == set(SUITE.families)
    assert row["ci"]["retention"][0] < row["retention"] < row["ci"]["retention"][1]
    table = (tmp_path / "results.md").read_text()
    assert "No difference is called clear with fewer than 30 images" in table
    table = replace(results, images=30).to_markdown()
    assert "chance alone makes so large a difference" in table and "for the 1 comparison in this table" in table
    assert f"| random | {results.scores[2].retention:.1f} [" in table
    with Image.open(tmp_path / "retention.png") as plot:
        assert plot.size[0] > 400


def test_printed_results_are_tables(results, capsys):
    print(replace(results, images=30))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("scenes: ") and max(map(len, lines[:12])) <= 100
    head, _, vanilla, good, bad = lines[2:7]
    assert head.split()[:5] == ["method", "K", "tokens", "accuracy", "retention"]
    assert vanilla.split()[:5] == ["vanilla", "576", "64", "100.0", "100.0"]
    assert good.startswith("covist-fixed ") and f"{results.scores[2].retention:.1f}" in bad
    assert len({len(line) for line in (head, vanilla, good, bad)}) == 1, "columns are not aligned"
    assert any(line.startswith("random ") for line in lines[8:])
    assert "Clear: chance alone" in lines[-1]


def test_without_matplotlib_only_the_plot_is_left_out(results, tmp_path, monkeypatch):
    results.write(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(UserWarning, match=r"retention.png is left out: .* pip install 'covist\[figures\]'"):
        results.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "results.md"}, "an old plot stayed"


def test_figures_that_cannot_be_computed_are_null(tmp_path):
    records = Records(None, {})
    for item in ITEMS:
        records.add(VANILLA, ItemAnswers(item.number, ["nothing"] * len(item.questions), 0.1, 576.0))
        records.add(GOOD, ItemAnswers(item.number, ["nothing"] * len(item.questions), 0.1, 64.0))
    results = Results.build(SUITE, ITEMS, [VANILLA, GOOD], records, seed=0)
    results.write(tmp_path)
    row = json.loads((tmp_path / "results.json").read_text())["results"][1]
    assert row["accuracy"] == 0
    assert row["retention"] is None
    assert "–" in (tmp_path / "results.md").read_text()


def test_answers_of_methods_with_long_names_are_stored_and_found(tmp_path):
    """A file name has at most 255 bytes; a method with all its options may need more, and differ only at the end."""
    options = ",".join(f"option{number}=0.123456789" for number in range(20))
    runs = [
        Run(f"covist-fixed:{options},last={last}", budget)
        for last in ("1", "2")
        for budget in (Count(64), Coverage(0.9))
    ]
    runs.append(Run("ü" * 200, Count(64)))
    with Records(tmp_path, {"seed": 0}) as records:
        for number, run in enumerate(runs):
            records.add(run, ItemAnswers(number, ["red"], seconds=0.5, tokens=64.0))
    with Records(tmp_path, {"seed": 0}) as again:
        assert [list(again.of(run)) for run in runs] == [[number] for number in range(len(runs))]
        assert set(again.runs()) == set(runs)


def test_short_names_say_what_the_files_hold(tmp_path):
    Records(tmp_path, {"seed": 0}).add(Run("covist-fixed:a=1", Coverage(0.9)), ItemAnswers(0, ["red"], 0.5, 64.0))
    assert [path.name for path in (tmp_path / "answers").iterdir()] == ["covist-fixed_a=1@auto_0.9.jsonl"]
