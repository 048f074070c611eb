"""Answers, costs and refusals as HTML."""

import pytest

from covist.page.asking import Reply
from covist.page.cards import Bar, answer_cards, compare_grid, cost_bars, draw_bars, link_line
from covist.page.choice import Choice
from covist.serve.sequence import Finished, PromptCost
from covist.units import number

COST = PromptCost(576, 64.0, 1e5, 1e6, 2e8, 3e9)
END = Finished("stop", 3, COST, 0.1, 0.5, prefill=0.2, computed=0.3)
PLAIN = Finished("stop", 3, COST, 0.1, 0.5, prefill=0.4, computed=1.2)


def test_user_text_is_escaped_everywhere():
    bad = "<script>alert(1)</script>"
    reply, refused = Reply(bad, END), Reply(refusal=bad)
    pages = [
        answer_cards(Choice(method=bad), [reply, refused], [bad]),
        answer_cards(Choice(), [refused, refused]),
        compare_grid([(bad, reply, "")], [bad]),
        link_line(Choice(question='"><script>')),
    ]
    for page in pages:
        assert "<script" not in page


def test_a_refusal_of_both_answers_is_said_once():
    both = answer_cards(Choice(), [Reply(refusal="Too large.")] * 2)
    one = answer_cards(Choice(), [Reply(refusal="No such method."), Reply("yes", END)])
    assert both.count('role="alert"') == one.count('role="alert"') == 1
    assert "cv-card" not in both and "yes" in one


def test_an_answer_that_is_being_written_has_a_caret():
    writing, done = Reply("top"), Reply("top-right", END)
    page = answer_cards(Choice(), [writing, done])
    assert page.count("cv-caret") == 1 and "64 of 576 tokens" in page


def test_costs_are_those_of_the_two_answers():
    bars = {bar.name: (bar.plain, bar.compressed) for bar in cost_bars(END, PLAIN)}
    assert bars == {
        "tokens per layer": (576, 64.0),
        "KV cache": (1e6, 1e5),
        "prefill FLOPs": (3e9, 2e8),
        "first token": (0.4, 0.2),
        "whole answer": (1.2, 0.3),
    }


@pytest.mark.parametrize(("plain", "compressed", "widths"), [(10, 5, (50, 100)), (4, 5, (100, 80)), (0, 0, (0, 0))])
def test_the_longer_bar_fills_its_line(plain, compressed, widths):
    page = draw_bars([Bar("tokens", plain, compressed, number)])
    assert [f"width:{width:.1f}%" in page for width in widths] == [True, True]
