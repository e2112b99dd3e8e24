"""`python -m eagle3_hs_dump.launch` in place of `python -m sglang.launch_server`, for an SGLang without plugin loader.

That is 0.5.9 and 0.5.10. SGLang spawns its processes, and a spawned process first executes the main module again, as
`__mp_main__`: so what is loaded at the end of this file is loaded in each of them.
"""

import importlib
import importlib.util
import os
import sys
from importlib.metadata import entry_points

GROUP = "sglang.srt.plugins"


def load_plugins() -> None:
    """What newer versions do by themselves. Only ours: others, if there are any, were made for a newer SGLang."""
    importlib.import_module("sglang.srt.managers.scheduler")  # to plugins the sign of a process that may run a model
    for plugin in entry_points(group=GROUP):
        if plugin.name.startswith("eagle3_"):
            plugin.load()()


def main() -> None:
    """The server, as sglang.launch_server starts it."""
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    arguments = prepare_server_args(sys.argv[1:])
    if not hasattr(arguments, "enforce_disable_flashinfer_allreduce_fusion"):
        # 0.5.9 has no flag against the fusion that it switches on for some models.
        arguments.enable_flashinfer_allreduce_fusion = False
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ in ("__main__", "__mp_main__"):
    if importlib.util.find_spec(GROUP) is not None:
        sys.exit("this SGLang loads plugins by itself: start it with `python -m sglang.launch_server`")
    load_plugins()
if __name__ == "__main__":
    main()
