"""`make compat`: every published version's source against what the plugin uses, as a short table."""

import sys
import tempfile
from pathlib import Path

from tests.compat.check import command_of, problems
from tests.compat.symbols import VERSIONS
from tests.compat.wheels import UnreachableError, unpack

_GRAPHS = {
    "cuda_graph_backend_prefill": "one flag for each phase",
    "disable_piecewise_cuda_graph": "two flags",
    "disable_cuda_graph": "one flag",
}


def main() -> int:
    bad = 0
    print(f"{'SGLang':<14}{'started by':<27}{'graphs off by':<26}{'fusion off by':<16}fits")
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                source = unpack(version, Path(folder))
            except UnreachableError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            found = problems(version, source)
            bad += bool(found)
            command = command_of(source, "cuda", "extraction", allow_untested=True)
        graphs = next(text for flag, text in _GRAPHS.items() if flag in command.flags)
        fusion = "its flag" if "enforce_disable_flashinfer_allreduce_fusion" in command.flags else "the launcher"
        print(f"{version:<14}{command.argv[2]:<27}{graphs:<26}{fusion:<16}{'no' if found else 'yes'}")
        for text in found:
            print(f"    {text}")
    print(f"{len(VERSIONS) - bad} of {len(VERSIONS)} versions fit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
