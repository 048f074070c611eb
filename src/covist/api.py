"""`covist.compress`: the one call that turns compression on."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from covist.config import CovistConfig
from covist.engine.compression import Compression
from covist.engine.decoder import Decoder
from covist.engine.instruction import InstructionReader
from covist.engine.prefill import Settings
from covist.errors import CovistError
from covist.families.registry import family_for
from covist.families.text_tower import TextTower
from covist.methods.base import Method
from covist.methods.registry import create_method
from covist.schedule import resolve_budget


def compress(
    model: nn.Module,
    processor: Any | None = None,
    *,
    budget: int | float | str = 64,
    strategy: str | None = None,
    method: str | Method | None = None,
    config: CovistConfig | None = None,
    clip: Any | None = None,
    instruction: str | None = None,
    positions: str | None = None,
    concentration: float | None = None,
) -> Compression:
    """Compress the visual tokens of every image that `model` sees, until the handle is removed.

    model: a supported vision-language model (see `covist.supported_models()`), unmodified.
    processor: its processor or tokenizer; needed to read the instruction's text and to find the assistant turn.
    budget: visual tokens per image, as a count (64), a fraction (0.11) or a percentage ("11%"); a layer mean for
        methods that reduce inside the decoder. A budget of all tokens or more changes nothing.
    strategy: "fixed" (default) or "pro", CoViST's two executions.
    method: another registered method by name (see `covist.available_methods()`) or a `Method` object. A name may end
        in `+csc`, `+sca` or both: "divprune+csc+sca" is DivPrune's selection with CoViST's composition and attention.
    config: constants of CoViST; `strategy` defaults to its strategy.
    clip: the CLIP checkpoint whose vision tower the model uses (id, directory, or `(CLIPModel, tokenizer)`).
    instruction: what is asked about the images, instead of reading it from the prompt.
    positions: "keep" or "reindex"; default is what the method's paper does.
    concentration: freeze CoViST's running concentration reference to this number, so that the result for an image
        does not depend on the images before it.
    """
    family = family_for(model)
    chosen = _method(strategy, method, config, positions, concentration)
    resolve_budget(budget, 1)  # an impossible budget is refused here, not in the middle of a request
    text_tower = TextTower.resolve(clip) if family.needs_clip_text else None
    if chosen.uses_clip_text and family.needs_clip_text and text_tower is None:
        warnings.warn(
            "no clip= given: instruction and image meet in the decoder's space, not in CLIP's (weaker, and without "
            "CoViST's anchors); pass the CLIP checkpoint of the vision tower for the published route",
            stacklevel=2,
        )
    if instruction is not None and processor is None and text_tower is None:
        raise CovistError("instruction= needs the processor (or clip=) to be read")
    settings = Settings(
        method=chosen,
        decoder=Decoder(family.decoder, family.rotary_axes()),
        reader=InstructionReader(family, processor, instruction),
        text_tower=text_tower,
        budget=budget,
    )
    return Compression(family, settings)


def _method(
    strategy: str | None,
    method: str | Method | None,
    config: CovistConfig | None,
    positions: str | None,
    concentration: float | None,
) -> Method:
    if isinstance(method, Method):
        if any(option is not None for option in (strategy, config, positions, concentration)):
            raise CovistError(
                "a Method object has its options already: give config= and positions= to its constructor, and freeze "
                "its tracker in place of concentration="
            )
        return method
    if config is not None and not isinstance(config, CovistConfig):
        raise CovistError(f"config={type(config).__name__}: give a CovistConfig")
    if strategy not in (None, "fixed", "pro"):
        raise CovistError(f"strategy={strategy!r}: choose 'fixed' or 'pro'")
    if method is not None and strategy is not None:
        raise CovistError("give either strategy= (CoViST) or method=, not both")
    name = method or f"covist-{strategy or (config.strategy if config else 'fixed')}"
    options: dict[str, Any] = {} if positions is None else {"positions": positions}
    if config is not None:
        is_covist = name in ("covist-fixed", "covist-pro")
        options["config"] = config.replace(strategy=name.removeprefix("covist-")) if is_covist else config
    chosen = create_method(name, **options)
    if concentration is not None and hasattr(chosen, "tracker"):
        chosen.tracker.freeze(concentration)
    return chosen
