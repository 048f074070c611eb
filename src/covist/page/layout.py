"""The page itself, in Gradio."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from covist.methods.registry import available_methods
from covist.page.choice import STRATEGIES
from covist.page.events import MOST_COMPARED, Events
from covist.page.examples import Example, is_embedded
from covist.page.image import uploaded_image
from covist.page.methods import COMPARED, describe_method, method_names

STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
HEADING = """<header class="cv-head"><h1>covist</h1>
<p>Ask <b>{model}</b> about an image, with few visual tokens and with all of them.{warning}</p></header>"""
EMBEDDED = " This small model comes with covist: it knows drawn scenes, and nothing of photographs."
SHOW_STAGE = "stage => { document.getElementById('cv-drawing').dataset.stage = stage; }"
KEEP_LINK = """() => {
  const link = document.querySelector('.cv-link a');
  if (link) history.replaceState(null, '', link.getAttribute('href'));
}"""
IS_OPEN = "(...given) => [...given.slice(0, -1), Boolean(document.querySelector('#cv-compare')?.offsetParent)]"
"""Tells whether a visitor looks at the comparison."""
ON_LOAD = """() => {
  const names = NAMES;
  const name = () => {
    document.querySelectorAll('#cv-examples button').forEach((one, place) => { one.ariaLabel = names[place]; });
    document.querySelectorAll('#cv-image img').forEach(one => { one.alt = 'The image that you ask about'; });
  };
  const leave = event => {
    if (event.key == 'Enter' && event.target.matches('#cv-budget input[type=number]')) event.target.blur();
  };
  document.addEventListener('keydown', leave);
  new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
  name();
}"""
"""Names what Gradio leaves without a name, whenever it draws it, and lets Enter confirm a number, which asks."""
_FONTS = {
    "font": [gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],
    "font_mono": [gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
}
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Answers show their own progress, and the handlers are not a public API: use `/v1`."""
# Gradio's own greys and accents are too faint to be read: text has a contrast of 4.5:1, as axe-core checks.
THEME = gr.themes.Base(primary_hue="indigo", neutral_hue="slate", radius_size="md", **_FONTS).set(
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_300",
    block_label_text_color="*neutral_600",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
    button_primary_border_color="*primary_600",
    color_accent="*primary_600",
    link_text_color="*primary_700",
    link_text_color_dark="*primary_300",
)


def script(examples: list[Example]) -> str:
    """What the browser runs when the page is loaded."""
    names = [f"Example {number}: {example.question}" for number, example in enumerate(examples, 1)]
    return ON_LOAD.replace("NAMES", json.dumps(names))


def build_page(events: Events) -> gr.Blocks:
    """Build the page with its handlers: question, results and controls, in this order on a phone."""
    with gr.Blocks(title="covist", analytics_enabled=False, fill_width=True) as page:
        warning = EMBEDDED if is_embedded(events.service.name) else ""
        gr.HTML(HEADING.format(model=escape(events.service.name), warning=warning), apply_default_css=False)
        with gr.Column(elem_classes="cv-page"):
            with gr.Column(elem_classes="cv-question"):
                question = _Question(events)
            with gr.Column(elem_classes="cv-results"), gr.Tabs():
                with gr.Tab("Ask"):
                    answer = _Answer()
                with gr.Tab("Compare methods"):
                    comparison = _Comparison()
            with gr.Column(elem_classes="cv-controls"):
                controls = _Controls(events)
        answer.follow(page, question, controls, events)
        comparison.follow(question, controls, events)
    page.queue(default_concurrency_limit=None, max_size=events.service.limits.queue, api_open=False)
    return page


class _Question:
    """What a visitor asks.

    example:    the number of the example that is shown; None for an uploaded image
    image_time: when the image was put in place; whenever it changes, the question is asked
    """

    def __init__(self, events: Events):
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
        self.text = gr.Textbox(label="Question", lines=1, elem_id="cv-question")
        self.ask = gr.Button("Ask", variant="primary", elem_id="cv-ask")
        shown = [self.image, self.text, self.example, self.image_time]
        picks.click(events.pick, picks, shown, **_QUIET)
        self.image.upload(events.take, None, [self.example, self.image_time], **_QUIET)
        self.image.clear(lambda: None, None, self.example, **_QUIET)

    @property
    def asked(self) -> list[Any]:
        """Whatever asks: the button, and Enter."""
        return [self.ask.click, self.text.submit]


class _Controls:
    """How it is answered."""

    def __init__(self, events: Events):
        start = events.start
        self.budget = gr.Slider(
            1, events.tokens, start.budget, step=1, label="Budget: visual tokens per layer", elem_id="cv-budget"
        )
        with gr.Group():
            self.method = gr.Dropdown(list(method_names()), value=start.method, label="Method", elem_id="cv-method")
            self.strategy = gr.Radio(list(STRATEGIES), value=start.strategy, label="Strategy", elem_id="cv-strategy")
        about = gr.HTML(describe_method(start.method_name), elem_classes="cv-about", apply_default_css=False)
        chosen = [self.method, self.strategy]
        gr.on([one.change for one in chosen], events.describe, chosen, [self.strategy, about], **_QUIET)

    @property
    def changed(self) -> list[Any]:
        return [self.budget.release, self.method.input, self.strategy.input]


class _Answer:
    """The places of answers, costs and drawings."""

    def __init__(self) -> None:
        self._answers = gr.HTML(elem_id="cv-answers", apply_default_css=False)
        self._bars = gr.HTML(elem_id="cv-bars", apply_default_css=False)
        with gr.Row():
            with gr.Column(scale=5, min_width=300):
                self._stage = gr.Slider(
                    1, 2, 1, step=1, label="Stage", visible=False, elem_id="cv-stage", buttons=[], interactive=True
                )
                self._drawing = gr.HTML(elem_id="cv-drawing", apply_default_css=False)
            with gr.Column(scale=4, min_width=260):
                self._maps = gr.HTML(elem_id="cv-maps", apply_default_css=False)
        self._link = gr.HTML(elem_id="cv-link", apply_default_css=False)
        self._stage.change(None, self._stage, None, js=SHOW_STAGE)

    def follow(self, page: gr.Blocks, question: _Question, controls: _Controls, events: Events) -> None:
        """Answer the question, with everything that changes it."""
        given = [question.image, question.text, controls.budget, controls.method, controls.strategy, question.example]
        page.load(events.load, None, [*given, question.image_time], **_QUIET)
        shown = [self._answers, self._bars, self._drawing, self._stage, self._maps, self._link, controls.budget]
        # One listener for all triggers, so that a question asked during an answer is always answered after it.
        triggers = [*question.asked, *controls.changed, question.image_time.change]
        asked = gr.on(triggers, events.ask, given, shown, trigger_mode="always_last", **_QUIET)
        asked.then(None, js=KEEP_LINK)


class _Comparison:
    """The methods to compare, and their answers."""

    def __init__(self) -> None:
        self._methods = gr.Dropdown(
            list(available_methods()),
            value=list(COMPARED),
            multiselect=True,
            max_choices=MOST_COMPARED,
            label=f"Methods, up to {MOST_COMPARED}",
            elem_id="cv-methods",
        )
        self._compare = gr.Button("Compare", variant="primary", elem_id="cv-compare")
        self._is_open = gr.Checkbox(visible=False)
        self._grid = gr.HTML(elem_id="cv-grid", apply_default_css=False)

    def follow(self, question: _Question, controls: _Controls, events: Events) -> None:
        """Compare, by the button, and by what asks while the comparison is looked at."""
        given = [question.image, question.text, controls.budget, self._methods, self._is_open]
        triggers = [self._compare.click, *question.asked]
        gr.on(triggers, events.compare, given, self._grid, js=IS_OPEN, trigger_mode="always_last", **_QUIET)
