"""SGLang plugins for a server on a CPU: what is wrong there (mla) and what is slow (norm)."""

import sys


def runs_model() -> bool:
    """Plugins are called in each of the server's processes; only the scheduler's runs the model."""
    return "sglang.srt.managers.scheduler" in sys.modules
