"""The second test bed: a LLaVA-NeXT of 16 layers, and crowded scenes whose questions need its tiles.

model, processor, clip = covist.tiny.load("next")
"""

from covist.tiny.hd.questions import HD_FAMILIES, hd_questions_for
from covist.tiny.hd.scenes import sample_hd_scene

__all__ = ["HD_FAMILIES", "hd_questions_for", "sample_hd_scene"]
