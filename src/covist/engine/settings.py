"""The settings of a handle."""

from __future__ import annotations

from dataclasses import dataclass

from covist.contract.family import Family
from covist.contract.instruction import TextSpace
from covist.contract.method import Method
from covist.contract.pixels import Preprocessing
from covist.engine.decoder import FrozenDecoder
from covist.engine.question import InstructionReader


@dataclass
class Settings:
    """The model family, method, decoder and options that a handle compresses with."""

    family: Family
    method: Method
    decoder: FrozenDecoder
    reader: InstructionReader
    text_tower: TextSpace | None
    budget: int | float | str
    min_coverage: float | None = None  # an image whose first reduction covers less runs uncompressed
    reselect: bool = False  # a later question chooses the tokens of earlier images again
    certify: bool = False  # compute the bound of Proposition 1 for every image
    preprocessing: Preprocessing = Preprocessing()  # of the images, if the processor is known
