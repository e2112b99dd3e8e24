"""The model that is served and that the drafter is trained for."""

from eagle3.target.info import TargetInfo, read_info
from eagle3.target.resolve import cache_folder, resolve_target
from eagle3.target.weights import load_embedding, load_lm_head

__all__ = ["TargetInfo", "cache_folder", "load_embedding", "load_lm_head", "read_info", "resolve_target"]
