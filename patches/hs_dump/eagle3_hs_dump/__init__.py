"""SGLang plugin that writes hidden states into the shards of an eagle3 dataset while the server runs.

Self-contained (torch and the standard library): the server may live in another environment than the project.
Inert unless SGLANG_HS_DUMP_DIR names the `work` folder of a dataset.
"""

VERSION = "1"
OLDEST, NEWEST = "0.5.9", "0.5.23"
"""SGLang versions that the hooks were read against."""
PLUGINS_SINCE = "0.5.11"
"""SGLang that loads plugins by itself; an older one is started by `python -m eagle3_hs_dump.launch`."""


class DumpError(Exception):
    """The dump cannot be right; the text goes into the ready marker or the status file."""
