"""From configuration to report: stages, fingerprints, reuse. Nothing about tensors."""

from eagle3.pipeline.main import main, run_job

__all__ = ["main", "run_job"]
