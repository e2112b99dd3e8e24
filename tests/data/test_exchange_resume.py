"""An export and an import that are killed at any moment and started again end as if nothing had happened."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.data.exchange_cases import write_states, write_target

from eagle3.data.verify import verify

LENGTHS = [4 + i * 7 % 19 for i in range(120)]
# Everything is imported once; each attempt is a fork of that, killed after a random part of the time that one takes.
ATTEMPTS = """
import json, os, random, signal, sys, threading, time
from pathlib import Path
from tests.data.exchange_cases import Silent
from eagle3.data.exchange.exporting import export_data
from eagle3.data.exchange.importing import Import, import_data
from eagle3.data.exchange.table import FORMATS
from eagle3.target.info import read_info

base = Path(sys.argv[1])
form = FORMATS["speculators"]

def attempt(work, out, delay=None):
    child = os.fork()
    if not child:
        if delay is not None:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            work(out)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def attempts(work, name):
    began = time.monotonic()
    codes = [attempt(work, base / f"{name}-whole")]
    whole = time.monotonic() - began
    draw = random.Random(int.from_bytes(os.urandom(4)))
    codes += [attempt(work, base / f"{name}-killed", draw.uniform(0.05, 0.6) * whole) for _ in range(6)]
    return [*codes, attempt(work, base / f"{name}-killed")]

exported = attempts(lambda out: export_data(base / "dataset", out, form, Silent()), "export")
foreign = base / "export-whole"
job = Import(foreign, form, [1, 3], read_info(base / "target"))
imported = attempts(lambda out: import_data(foreign, out, job, Silent(), shard_gib=2e-5), "import")
print(json.dumps([exported, imported]))
"""


def test_killed_again_and_again_they_end_the_same(tmp_path: Path) -> None:
    write_states(tmp_path / "dataset", write_target(tmp_path / "target"), [1, 3, 4], LENGTHS)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, str(tmp_path)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    for name, codes in zip(("export", "import"), json.loads(done.stdout), strict=True):
        assert codes[0] == codes[-1] == 0, done.stderr
        assert -9 in codes, codes
        assert tree(tmp_path / f"{name}-killed") == tree(tmp_path / f"{name}-whole")
    assert not list(verify(tmp_path / "import-killed"))


def tree(folder: Path) -> dict[str, str]:
    """Each file's sha256, but for those with an Arrow dataset's random fingerprint or the times of files."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if name not in ("state.json", "checked.json")
    }
