"""Runs beside each other, from their folders alone: one table, the best, and whether it is more than noise."""

from eagle3.comparison.table import Comparison, compare

__all__ = ["Comparison", "compare"]
