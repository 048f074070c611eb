"""Answers, costs and refusals as HTML. All text from visitors and models is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from covist.page.asking import Reply
from covist.page.choice import Choice
from covist.serve.sequence import Finished
from covist.units import milliseconds, number, operations, size

BARS = ("tokens per layer", "KV cache", "prefill FLOPs", "first token", "whole answer")
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


def answer_cards(choice: Choice, replies: Sequence[Reply], notes: Sequence[str] = ()) -> str:
    """Both answers side by side, and notes below them; if both were refused, the reason once."""
    compressed, plain = replies
    if compressed.refusal and compressed.refusal == plain.refusal:
        return refused_answers(compressed.refusal)
    ours = _card(choice.method_name, _tokens(compressed), compressed, "cv-card cv-ours")
    theirs = _card("uncompressed", _tokens(plain), plain, "cv-card")
    return _answers(f"{ours}{theirs}", [*notes, *certificates(compressed)])


def refused_answers(sentence: str) -> str:
    """A refusal in the place of both answers."""
    return _answers(refusal_card(sentence), ())


def _answers(shown: str, notes: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<div class="cv-answers" aria-live="polite">{shown}<ul class="cv-notes">{lines}</ul></div>'


def unknown_note(words: Sequence[str]) -> list[str]:
    """What to say about words of a question that the model cannot read."""
    return [f"Not in the model's vocabulary: {', '.join(words)}."] if words else []


def certificates(reply: Reply) -> list[str]:
    """How well what was kept represents each image, once it is known, where the method measures it."""
    images = () if reply.end is None else reply.end.cost.images
    said = [str(image.certificate) for image in images if image.certificate is not None]
    return [f"{line[:1].upper()}{line[1:]}." for line in said]


def cost_bars(compressed: Finished, plain: Finished) -> list[Bar]:
    """The costs of both answers. Times count only while an answer had the model to itself, without waiting."""
    cost = compressed.cost
    figures = (
        (cost.visual_tokens, cost.visual_tokens_kept, number),
        (cost.cache_bytes_uncompressed, cost.cache_bytes, size),
        (cost.flops_uncompressed, cost.flops, operations),
        (plain.prefill, compressed.prefill, milliseconds),
        (plain.computed, compressed.computed, milliseconds),
    )
    return [Bar(name, *figure) for name, figure in zip(BARS, figures, strict=True)]


def empty_bars() -> str:
    """The place of the bars, while there is nothing to compare."""
    lines = '<div class="cv-line"><div class="cv-track"></div><span></span></div>' * 2
    drawn = "".join(f'<div class="cv-bar"><div class="cv-name">{name}</div>{lines}</div>' for name in BARS)
    return f'<div class="cv-bars">{drawn}</div>'


def draw_bars(bars: Sequence[Bar]) -> str:
    """Two bars for each figure; the longer one fills the line."""
    return f'<div class="cv-bars">{"".join(map(_draw_bar, bars))}</div>'


def link_line(choice: Choice) -> str:
    """The link that restores a choice."""
    lacking = "" if choice.example is not None else " <small>(without your image)</small>"
    return f'<p class="cv-link"><a href="{escape(choice.link)}">Link to these settings</a>{lacking}</p>'


def compare_grid(cards: Sequence[tuple[str, Reply, str]], notes: Sequence[str] = ()) -> str:
    """A card for each method: its answer, a drawing of what it kept, and how well that represents the image."""
    written = "".join(
        _card(name, _tokens(reply), reply, "cv-card", drawing + _paragraphs(certificates(reply) if drawing else ()))
        for name, reply, drawing in cards
    )
    return f'{_paragraphs(notes)}<div class="cv-grid" aria-live="polite">{written}</div>'


def _paragraphs(notes: Sequence[str]) -> str:
    return "".join(f'<p class="cv-note">{escape(note)}</p>' for note in notes)


def _card(name: str, tokens: str, reply: Reply, kind: str, drawing: str = "") -> str:
    if reply.refusal:
        said = refusal_card(reply.refusal)
    else:
        said = f'<p class="cv-text">{escape(reply.text)}{"" if reply.is_done else CARET}</p>'
    heading = f'<h2>{escape(name)}<span class="cv-tokens">{tokens}</span></h2>'
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
