"""Answers, costs and refusals as HTML. All text from visitors and models is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from covist.page.asking import Reply
from covist.page.choice import Choice
from covist.serve.sequence import Finished
from covist.units import milliseconds, number, operations, size

CARET = '<span class="cv-caret" aria-hidden="true"></span>'


@dataclass(frozen=True)
class Bar:
    """One figure with and without compression."""

    name: str
    plain: float
    compressed: float
    unit: Callable[[float], str]

    @property
    def share(self) -> float:
        """Compressed over plain."""
        return self.compressed / self.plain if self.plain else 1.0


def refusal_card(sentence: str) -> str:
    return f'<p class="cv-refusal" role="alert">{escape(sentence)}</p>'


def answer_cards(choice: Choice, compressed: Reply, plain: Reply) -> str:
    """Both answers side by side; if both were refused, the reason once."""
    if compressed.refusal and compressed.refusal == plain.refusal:
        return refusal_card(compressed.refusal)
    ours = _card(choice.method_name, _tokens(compressed), compressed, "cv-card cv-ours")
    theirs = _card("uncompressed", _tokens(plain), plain, "cv-card")
    return f'<div class="cv-answers" aria-live="polite">{ours}{theirs}</div>'


def cost_bars(compressed: Finished, plain: Finished) -> list[Bar]:
    """The costs of both answers. Times count only while an answer had the model to itself, without waiting."""
    cost = compressed.cost
    return [
        Bar("tokens per layer", cost.visual_tokens, cost.visual_tokens_kept, number),
        Bar("KV cache", cost.cache_bytes_uncompressed, cost.cache_bytes, size),
        Bar("prefill FLOPs", cost.flops_uncompressed, cost.flops, operations),
        Bar("first token", plain.prefill, compressed.prefill, milliseconds),
        Bar("whole answer", plain.computed, compressed.computed, milliseconds),
    ]


def draw_bars(bars: Sequence[Bar]) -> str:
    """Two bars for each figure; the longer one fills the line."""
    return f'<div class="cv-bars">{"".join(map(_draw_bar, bars))}</div>'


def link_line(choice: Choice) -> str:
    """The link that restores a choice."""
    lacking = "" if choice.example is not None else " <small>(without your image)</small>"
    return f'<p class="cv-link"><a href="{escape(choice.link)}">Link to these settings</a>{lacking}</p>'


def compare_grid(cards: Sequence[tuple[str, Reply, str]]) -> str:
    """A card for each method: its name, its answer, and a drawing of what it kept."""
    written = "".join(_card(name, _tokens(reply), reply, "cv-card", drawing) for name, reply, drawing in cards)
    return f'<div class="cv-grid">{written}</div>'


def _card(name: str, tokens: str, reply: Reply, kind: str, drawing: str = "") -> str:
    if reply.refusal:
        said = refusal_card(reply.refusal)
    else:
        said = f'<p class="cv-text">{escape(reply.text)}{"" if reply.is_done else CARET}</p>'
    heading = f'<h3>{escape(name)}<span class="cv-tokens">{tokens}</span></h3>'
    return f'<section class="{kind}" aria-label="{escape(name)}">{heading}{said}{drawing}</section>'


def _tokens(reply: Reply) -> str:
    """Visual tokens after and before, once they are known."""
    if reply.end is None:
        return ""
    kept, before = (number(count) for count in (reply.end.cost.visual_tokens_kept, reply.end.cost.visual_tokens))
    return f"{before} tokens" if kept == before else f"{kept} of {before} tokens"


def _draw_bar(bar: Bar) -> str:
    longest = max(bar.plain, bar.compressed) or 1.0
    lines = "".join(
        f'<div class="cv-line"><div class="cv-track"><i class="{kind}" style="width:{100 * value / longest:.1f}%"></i>'
        f'</div><span><span class="cv-hidden">{label} </span>{bar.unit(value)}</span></div>'
        for kind, label, value in (
            ("cv-compressed", "compressed", bar.compressed),
            ("cv-plain", "uncompressed", bar.plain),
        )
    )
    return (
        f'<div class="cv-bar"><div class="cv-name">{escape(bar.name)}<b>{100 * bar.share:.0f} %</b></div>{lines}</div>'
    )
