"""One tiny random model for every vision-language type of transformers that has visual tokens in a decoder."""

from __future__ import annotations

from support.zoo.crops import ENTRIES as CROPS
from support.zoo.entry import Entry
from support.zoo.grids import ENTRIES as GRIDS
from support.zoo.others import ENTRIES as OTHERS

ZOO: dict[str, Entry] = {entry.name: entry for entry in (*GRIDS, *CROPS, *OTHERS)}
