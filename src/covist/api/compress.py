"""`covist.compress`: the call that turns compression on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from covist.api.choose import CallSettings, check_budget_of
from covist.api.handle import Compression
from covist.api.origin import check_origin
from covist.api.setup import DEFAULT, Setup
from covist.budget import Budget, Written
from covist.config import CovistConfig
from covist.contract.method import Method
from covist.contract.reading import check_method
from covist.engine.decoder import FrozenDecoder
from covist.engine.question import InstructionReader
from covist.engine.settings import CompressionSettings, Rules
from covist.errors import CovistError
from covist.families.registry import family_for
from covist.families.text_tower import Home, TextTower
from covist.methods.registry import available_methods
from covist.report.pixels import Preprocessing


def compress(
    model: nn.Module,
    processor: Any | None = None,
    *,
    budget: Budget | Written | None = None,
    strategy: str | None = None,
    method: str | Method | None = None,
    config: CovistConfig | Setup | str | Path | None = None,
    clip: Any | None = None,
    instruction: str | None = None,
    turn_markers: Mapping[str, str | Sequence[str]] | None = None,
    concentration: float | None = None,
    min_coverage: float | None = None,
    max_visual_tokens: int | None = None,
    exact_attention: bool = False,
    per_call: bool = False,
    **options: Any,
) -> Compression:
    """Compress the visual tokens of every image that `model` sees, until the handle is removed.

    model: a supported vision-language model (see `covist.available_families()`), unmodified.
    processor: the model's processor or tokenizer; needed to read the instruction and to find the assistant turn.
    budget: visual tokens per image, as a count (64, the default of LLaVA-1.5 and LLaVA-NeXT), a fraction (0.11) or a
        percentage ("20%", the default of all other models); a layer mean for methods that reduce inside the decoder.
        A budget of all tokens or more leaves the image uncompressed.
        "auto" gives each image as many tokens as it needs: the fewest that cover 90 % of it, between 1/36 and 1/3 of
        its tokens. "auto:0.8" sets another level, "auto:0.8:16:192" other bounds as well.
        "total:2048" is shared by all images and frames of a prompt, by what they add to coverage; "total:2048:64" gives
        each at least 64. "ages:256,128,64" gives images of the newest turn that has any 256 tokens each, those of the
        turn before it 128, and all older ones 64.
    strategy: "fixed" (default) or "pro", CoViST's two executions.
    method: another method by name, or a `Method` object. Names are those of the command line: "vispruner",
        "vispruner:important=0.75", "divprune+csc+sca:weight_limit=64" (DivPrune's selection with CoViST's composition
        and attention); see `covist.available_methods()`.
    config: constants of CoViST for methods that use parts of it, or a whole `Setup`, or the path of a file with either,
        such as the `covist.json` that `covist tune` and `covist calibrate` write. Other arguments take precedence.
    clip: the CLIP checkpoint whose vision tower the model uses (id, directory, or `(CLIPModel, tokenizer)`). Its text
        tower is loaded once, in the model's precision and on its device.
    instruction: the question about the images; by default it is read from the prompt.
    turn_markers: the text (or texts) that begins a turn of each role, for custom templates:
        `{"user": "[INST]", "assistant": "[/INST]"}`. The instruction of an image ends where an assistant turn begins,
        and images of different turns have different instructions. By default the markers come from the processor's
        chat template and from a list of widely used templates.
    concentration: freeze CoViST's running concentration reference to this number, so that the result for an image
        does not depend on the images before it.
    min_coverage: run an image uncompressed, and say so in its report, if the budget (for "auto" its upper bound) would
        cover less than this share of it.
    max_visual_tokens: the most visual tokens of a prompt in any layer, whatever the budget: where there would be more,
        all images are compressed further, by coverage. A prompt or a method for which that is impossible is refused.
    exact_attention: read the attention of every patch of a large image. By default, if the encoder has no class token
        and the image has more than 2,048 patches (about 630 x 630 pixels), each head reads half of the patches. All
        other attention is always exact.
    per_call: record everything that any method reads from the encoder, so that `handle.using()` can choose any method
        for single calls. Without it, `using()` accepts only methods that read nothing more than this one.
    options: settings of the method by name, like those after the colon in its name: `positions="keep"`,
        `important=0.75`, or single constants of CoViST such as `weight_limit=64`.

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model.generate(**inputs, max_new_tokens=8)
    >>> handle.report.mean_tokens
    64.0
    """
    family = family_for(model)
    family.exact_attention, family.tokenizer = exact_attention, getattr(processor, "tokenizer", processor)
    call = CallSettings.of(strategy, method, budget, config, concentration, min_coverage, options, max_visual_tokens)
    setup = call.over(DEFAULT).over(Setup(budget=family.default_budget))
    chosen = call.build_method(setup)
    check_origin(setup, family.model.config, chosen)
    check_budget_of(chosen, setup)
    if clip is not None and not family.needs_clip_text:
        raise CovistError(f"{family.name} has no CLIP vision tower, so it cannot use clip=; omit it")
    text_tower = TextTower.resolve(clip, Home.of(family.model))
    if text_tower is not None:
        text_tower.require_width(family.model.config.vision_config.hidden_size)
    if chosen.uses_clip_text and family.needs_clip_text and text_tower is None:
        warnings.warn(
            "no clip= given: instruction and image are compared in the decoder's space, not in CLIP's (weaker, and "
            "without CoViST's anchors); pass the CLIP checkpoint of the vision tower for the published route",
            stacklevel=2,
        )
    if instruction is not None and processor is None and text_tower is None:
        raise CovistError("instruction= needs the processor (or clip=) to read it")
    decoder = FrozenDecoder(family.decoder)
    check_method(chosen, decoder)
    settings = CompressionSettings(
        family=family,
        method=chosen,
        decoder=decoder,
        reader=InstructionReader(family, processor, instruction, turn_markers),
        rules=Rules(decoder),
        text_tower=text_tower,
        budget=setup.budget or family.default_budget,
        min_coverage=setup.min_coverage,
        max_visual_tokens=setup.max_visual_tokens,
        preprocessing=Preprocessing.of(processor),
    )
    others = [other.encoder_requests for other in available_methods().values()] if per_call else []
    encoder_requests = list(dict.fromkeys(chain(chosen.encoder_requests, *others)))
    return Compression(family, settings, setup, call.key(setup), encoder_requests)
