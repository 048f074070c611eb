"""What the user asked about an image: the markers between turns, the turns of a prompt, and the instruction."""

from covist.engine.question.markers import TurnMarkers
from covist.engine.question.reader import InstructionReader
from covist.engine.question.turns import Span, Turns

__all__ = ["InstructionReader", "Span", "TurnMarkers", "Turns"]
