"""Training-free visual token compression for unmodified Hugging Face vision-language models."""

from covist.api import compress
from covist.config import CovistConfig
from covist.engine.compression import Compression
from covist.engine.report import Report
from covist.methods.registry import methods
from covist.models.registry import supported_models

__version__ = "0.1.0"
__all__ = ["Compression", "CovistConfig", "Report", "compress", "methods", "supported_models"]
