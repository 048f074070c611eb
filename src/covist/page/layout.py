"""The page itself, in Gradio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from covist.methods.registry import available_methods
from covist.page.choice import STRATEGIES
from covist.page.events import MOST_COMPARED, Events
from covist.page.image import uploaded_image
from covist.page.methods import COMPARED, describe_method, method_names

STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
HEADING = """<header class="cv-head"><h1>covist</h1>
<p>Ask <b>{model}</b> about an image, with few visual tokens and with all of them.</p></header>"""
SHOW_STAGE = "stage => { document.getElementById('cv-drawing').dataset.stage = stage; }"
KEEP_LINK = """() => {
  const link = document.querySelector('.cv-link a');
  if (link) history.replaceState(null, '', link.getAttribute('href'));
}"""
_FONTS = {
    "font": [gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],
    "font_mono": [gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
}
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Answers show their own progress, and the handlers are not a public API: use `/v1`."""
THEME = gr.themes.Base(primary_hue="indigo", neutral_hue="slate", radius_size="md", **_FONTS)


def build_page(events: Events) -> gr.Blocks:
    """Build the page with its handlers."""
    with gr.Blocks(title="covist", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(HEADING.format(model=events.service.name), apply_default_css=False)
        with gr.Row(elem_classes="cv-page"):
            with gr.Column(scale=4, min_width=300, elem_classes="cv-inputs"):
                inputs = _Inputs(events)
            with gr.Column(scale=9, min_width=320), gr.Tabs():
                with gr.Tab("Ask"):
                    _add_answers(page, inputs, events)
                with gr.Tab("Compare methods"):
                    _add_comparison(inputs, events)
    page.queue(default_concurrency_limit=None, max_size=events.service.limits.queue, api_open=False)
    return page


class _Inputs:
    """The inputs of a visitor.

    example:    the number of the example that is shown; None for an uploaded image
    image_time: when the image was put in place; whenever it changes, the question is asked
    """

    def __init__(self, events: Events):
        start = events.start
        options: dict[str, Any] = {"label": "Image", "height": 250, "buttons": [], "elem_id": "cv-image"}
        self.image = uploaded_image(events.uploads, sources=["upload", "clipboard"], **options)
        self.example = gr.State(None)
        self.image_time = gr.State(0)
        picks = gr.Dataset(
            components=[gr.Image(visible=False, buttons=[])],
            samples=[[example.path] for example in events.examples],
            type="index",
            label="Examples",
            elem_id="cv-examples",
        )
        self.question = gr.Textbox(label="Question", lines=1, elem_id="cv-question")
        self.ask = gr.Button("Ask", variant="primary", elem_id="cv-ask")
        self.budget = gr.Slider(
            1, events.tokens, start.budget, step=1, label="Budget: visual tokens per layer", elem_id="cv-budget"
        )
        with gr.Group():
            self.method = gr.Dropdown(list(method_names()), value=start.method, label="Method", elem_id="cv-method")
            self.strategy = gr.Radio(list(STRATEGIES), value=start.strategy, label="Strategy", elem_id="cv-strategy")
        about = gr.HTML(describe_method(start.method_name), elem_classes="cv-about", apply_default_css=False)
        shown = [self.image, self.question, self.example, self.image_time]
        picks.click(events.pick, picks, shown, **_QUIET)
        self.image.upload(events.take, None, [self.example, self.image_time], **_QUIET)
        self.image.clear(lambda: None, None, self.example, **_QUIET)
        gr.on(
            [self.method.change, self.strategy.change],
            events.describe,
            [self.method, self.strategy],
            [self.strategy, about],
            **_QUIET,
        )

    @property
    def all(self) -> list[Any]:
        return [self.image, self.question, self.budget, self.method, self.strategy, self.example]


def _add_answers(page: gr.Blocks, inputs: _Inputs, events: Events) -> None:
    """The places of answers, costs and drawings, and everything that triggers them."""
    answers = gr.HTML(elem_id="cv-answers", apply_default_css=False)
    bars = gr.HTML(elem_id="cv-bars", apply_default_css=False)
    with gr.Row():
        with gr.Column(scale=5, min_width=300):
            stage = gr.Slider(
                1, 2, 1, step=1, label="Stage", visible=False, elem_id="cv-stage", buttons=[], interactive=True
            )
            drawing = gr.HTML(elem_id="cv-drawing", apply_default_css=False)
        with gr.Column(scale=4, min_width=260):
            maps = gr.HTML(elem_id="cv-maps", apply_default_css=False)
    link = gr.HTML(apply_default_css=False)
    stage.change(None, stage, None, js=SHOW_STAGE)
    shown = [answers, bars, drawing, stage, maps, link, inputs.budget]
    page.load(events.load, None, [*inputs.all, inputs.image_time], **_QUIET)
    asking = [inputs.ask.click, inputs.question.submit, inputs.budget.release]
    asking += [inputs.method.input, inputs.strategy.input, inputs.image_time.change]
    # One listener for all triggers, so that a question asked during an answer is always answered after it.
    asked = gr.on(asking, events.ask, inputs.all, shown, trigger_mode="always_last", **_QUIET)
    asked.then(None, js=KEEP_LINK)


def _add_comparison(inputs: _Inputs, events: Events) -> None:
    methods = gr.Dropdown(
        list(available_methods()),
        value=list(COMPARED),
        multiselect=True,
        max_choices=MOST_COMPARED,
        label=f"Methods, up to {MOST_COMPARED}",
        elem_id="cv-methods",
    )
    compare = gr.Button("Compare", variant="primary", elem_id="cv-compare")
    grid = gr.HTML(elem_id="cv-grid", apply_default_css=False)
    asked = [inputs.image, inputs.question, inputs.budget, methods]
    compare.click(events.compare, asked, grid, trigger_mode="always_last", **_QUIET)
