"""Fixtures of the evaluations."""

from support.untrained import few_reference_images, untrained

__all__ = ["few_reference_images", "untrained"]
