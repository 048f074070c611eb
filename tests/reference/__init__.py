"""Slow, literal float64 versions of the paper's formulas, written from the paper to check the fast code against."""
