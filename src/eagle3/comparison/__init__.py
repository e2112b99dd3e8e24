"""Runs beside each other, from their folders alone: tables, the best, and whether it is more than noise."""

from eagle3.comparison.outcome import headline
from eagle3.comparison.table import Comparison, NothingToCompareError, compare

__all__ = ["Comparison", "NothingToCompareError", "compare", "headline"]
