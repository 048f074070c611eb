"""The paper's systems and their names in covist; `methods/absent.json` lists those that covist lacks."""

from __future__ import annotations

import re

from covist.methods.grammar import VANILLA
from covist.methods.registry import available_methods, option_names

SYSTEMS = {
    "Vanilla": VANILLA,
    "CoViST-Fixed": "covist-fixed",
    "CoViST-Pro": "covist-pro",
    "AnchorPrune": "anchorprune",
    "ApET": "apet",
    "CDPruner": "cdpruner",
    "Cen-Prune+CDPruner": "cen-prune-cdpruner",
    "Cen-Prune+DivPrune": "cen-prune-divprune",
    "Cen-Prune+ZOO-Prune": "cen-prune-zoo-prune",
    "CLSE": "clse",
    "DART": "dart",
    "DART+Random": "wtr-dart",
    "DivPrune": "divprune",
    "DivPrune+Random": "wtr-divprune",
    "E2S-Pruner": "e2s-pruner",
    "EADP": "eadp",
    "EvoCut": "evocut",
    "FasterVLM": "fastervlm",
    "FastV": "fastv",
    "FlowCut": "flowcut",
    "FSR": "fsr",
    "HoloV": "holov",
    "MMTok": "mmtok",
    "MoB": "mob",
    "PriorTR": "priortr",
    "PruMerge+": "prumerge-plus",
    "PruneSID": "prunesid",
    "PyramidDrop": "pyramiddrop",
    "RESTORE+HoloV": "restore-holov",
    "RESTORE+VisPruner": "restore-vispruner",
    "SCOPE": "scope",
    "SCoRe": "score",
    "SparseVLM": "sparsevlm",
    "ToMe": "tome",
    "TOPS": "tops",
    "TRIM": "trim",
    "V2Drop": "v2drop",
    "VisionTrim": "visiontrim",
    "VisionZip": "visionzip",
    "VisPruner": "vispruner",
    "VLM-Pruner": "vlm-pruner",
    "VScan": "vscan",
    "ZOO-Prune": "zoo-prune",
}
"""Every system of the tables that covist has."""
ON_TILES = {"FlowCut": "flowcut:tiles=nominal"}
"""Systems that have further published steps for images of several tiles."""
_MARKS = re.compile(r"(‡|†|\^[A-Z])+$")


def plain_name(system: str) -> str:
    """A system without its marks in a table.

    >>> plain_name("TOPS‡"), plain_name("VisionZip^R")
    ('TOPS', 'VisionZip')
    """
    return _MARKS.sub("", system)


def method_of(system: str, model: str = "") -> str | None:
    """The method for a system of the paper, with its published counts; None if covist lacks it.

    >>> method_of("FastV"), method_of("PriorTR"), method_of("RoRA")
    ('fastv', 'priortr:counts=nominal', None)
    >>> method_of("FlowCut"), method_of("FlowCut", "llava-next-7b")
    ('flowcut', 'flowcut:tiles=nominal')
    """
    if model.startswith("llava-next") and plain_name(system) in ON_TILES:
        return ON_TILES[plain_name(system)]
    name = SYSTEMS.get(plain_name(system))
    if name is None or name == VANILLA:
        return name
    return f"{name}:counts=nominal" if "counts" in option_names(available_methods()[name]) else name
