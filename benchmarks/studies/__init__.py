"""Measurements behind single statements of the documentation; each prints its tables in Markdown."""
