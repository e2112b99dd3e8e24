"""Nothing is lost: a full disk, damaged shards, a wedged server, bad rows, and kill -9 at random moments.

Requests go one at a time here, so that the same sequence has the same rows to the last bit whenever it is computed, and
"the same dataset" means equal.   EAGLE3_KILLS=20 EAGLE3_SEED=1: so many kills, as they were in that run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from tests.e2e.extraction import BOUNDARIES, At, Quiet, Setting, lengths, own_process, process_of, write_prompts
from tests.e2e.models import build, tiny_llama

from eagle3.commands.verify import run_verify
from eagle3.config import PROJECT
from eagle3.data import meter, session
from eagle3.data.layout import StateShape, state_names
from eagle3.data.manifest import Manifest
from eagle3.data.placement import Prompts
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.data.writer import write_dataset
from eagle3.errors import DataError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(7200)]
COUNT = 60
NAN_TOKEN = 2
BAD = {5: NAN_TOKEN, 57: NAN_TOKEN}
"""The longest sequence, which the proof takes too, and one near the end."""
BAD_IDS = [10 + 2 * i for i in BAD]


def setting_in(root: Path) -> Setting:
    return Setting(root, concurrency=1, stall_timeout_s=20.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("losses")
    model = build(tiny_llama(), root / "model")
    with torch.no_grad():
        model.get_input_embeddings().weight[NAN_TOKEN] = float("nan")
    model.save_pretrained(root / "model")
    write_prompts(root / "prompts", lengths(COUNT), bad=BAD)
    return root


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """Progress is told, and hooks called, many times a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "PERIOD_S", 0.02)
        yield


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> HiddenStates:
    """Extracted where a dataset of another target lay."""
    shape = StateShape(tuple(state_names(BOUNDARIES)), 64)
    prompts = Prompts.load(root / "prompts")
    write_dataset(root / "undisturbed", prompts, shape, lambda i: dict.fromkeys(shape.states, zeros(prompts, i)))
    reporter = Quiet()
    setting_in(root).extract("undisturbed", reporter)
    assert "held a dataset of another target, 'given'" in reporter.notes[0]
    assert list(root.glob("undisturbed-of-another-target-*/manifest.json"))
    return HiddenStates(root / "undisturbed")


def zeros(prompts: Prompts, i: int) -> torch.Tensor:
    return torch.zeros(int(prompts.lengths[i]), 64, dtype=torch.bfloat16)


def require_same(folder: Path, undisturbed: HiddenStates) -> None:
    """Sequence by sequence, to the last bit."""
    assert not list(verify(folder))
    data = HiddenStates(folder)
    assert data.manifest.shards == undisturbed.manifest.shards
    require_equal(data, undisturbed)
    assert len(data) == len(undisturbed)


def require_equal(some: HiddenStates, undisturbed: HiddenStates) -> None:
    where = {sample: i for i, sample in enumerate(undisturbed.sample_ids.tolist())}
    names = ["input_ids", "loss_mask", *some.manifest.states]
    for i, sample in enumerate(some.sample_ids.tolist()):
        one, two = some.read(i, names), undisturbed.read(where[sample], names)
        assert all(torch.equal(one[name], two[name]) for name in names), sample


def test_rows_that_are_not_finite_are_left_out_and_counted(undisturbed: HiddenStates) -> None:
    manifest = undisturbed.manifest
    assert manifest.quarantined == {str(sample): "nan" for sample in BAD_IDS}
    assert manifest.sequences == COUNT
    assert len(undisturbed) == COUNT - len(BAD)
    assert not set(BAD_IDS) & set(undisturbed.sample_ids.tolist())
    assert not list(verify(undisturbed.folder))


# -- one dataset, from one misfortune to the next; each test continues where the one before stopped --------------------


@pytest.fixture(scope="module")
def disk(root: Path) -> Iterator[Path]:
    """A disk of 64 MiB."""
    place = root / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a disk that can be filled takes root, to mount a tmpfs: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave: int) -> None:
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "ballast").write_bytes(bytes(free - leave))


def test_a_disk_that_fills(root: Path, disk: Path, undisturbed: HiddenStates) -> None:
    filling = At(30, lambda: fill(disk, 128 * 1024))
    with pytest.raises(DataError, match=r"(?s)[Dd]isk .*full.* of 60 sequences are committed in .*the same command"):
        setting_in(root).extract("disk/data", filling)
    assert not psutil.Process().children(recursive=True)
    there = HiddenStates(disk / "data", allow_incomplete=True)
    assert len(there.manifest.shards) >= 2
    require_equal(there, undisturbed)
    (disk / "ballast").unlink()


def test_damage_is_named(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Manifest.load(disk / "data")
    first, second = manifest.shards[:2]
    at = manifest.layout(first).rows("boundary.3", 2, 1)[0]
    with (disk / "data" / first.file).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.truncate(disk / "data" / second.file, second.bytes - 100)
    assert run_verify(disk / "data", every=True) == 1
    told, hint = capsys.readouterr()
    assert f"{first.file}, sequence 12, boundary.3: 2 rows don't have their checksum" in told
    assert f"{second.file}: " in told
    assert "the command that made it, run again" in hint
    assert not (disk / "data" / "checked.json").exists(), "nothing is taken to be right unseen"


def wedge() -> None:
    own_process("sglang::scheduler").send_signal(signal.SIGSTOP)


def test_a_wedged_server_is_replaced_and_too_many_bad_rows_stop_it(
    root: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was damaged is extracted again, and nothing else."""
    first, second = Manifest.load(disk / "data").shards[:2]
    stopping = At(32, wedge)
    monkeypatch.setattr(session, "HANDFUL", 1)
    with pytest.raises(DataError, match=r"2 of 60 sequences can't be used \(nan\): more than 1"):
        setting_in(root).extract("disk/data", stopping)
    notes = "\n".join(stopping.notes)
    assert f"{first.file} has changed: 1 of its {first.sequences} sequences are extracted again (12)" in notes
    assert f"{second.file} is missing or truncated: {second.sequences} of its {second.sequences} sequences" in notes
    there = int(notes.split(" of 60 sequences are there already")[0].split()[-1])
    assert there >= 30 - 1 - second.sequences
    assert "no progress for 20 s" in notes
    assert "sglang::scheduler) was stopped by a signal (SIGSTOP)" in notes
    assert "dump plugin, as of " in notes
    assert "starting another server, 1 of at most 2 (server.max_restarts)" in notes
    assert {"extract/restarts": 1} in stopping.rows
    assert not psutil.Process().children(recursive=True)


def test_in_the_end_it_is_the_undisturbed_one(root: Path, disk: Path, undisturbed: HiddenStates) -> None:
    last = Quiet()
    setting_in(root).extract("disk/data", last)
    there = int(last.notes[0].removesuffix(" of 60 sequences are there already"))
    assert there >= 57, "all up to the second bad one"
    require_same(disk / "data", undisturbed)


# -- kill -9, at random moments ------------------------------------------------------------

KINDS = ("client", "server", "writer")
PROCESSES = {"server": ("launch_server", "sglang::scheduler"), "writer": ("eagle3_hs_dump.writing",)}
"""Words of their command lines."""
CHILD = (
    "import sys; from pathlib import Path; from tests.e2e.test_losses import extract_here; "
    "sys.exit(extract_here(Path(sys.argv[1]), sys.argv[2]))"
)


def extract_here(root: Path, out: str) -> int:
    """What a child process does: the command that is run again and again."""
    from eagle3.errors import Eagle3Error

    try:
        setting_in(root).extract(out)
    except Eagle3Error as error:
        print(f"error: {error}")
        return 1
    return 0


def committed(folder: Path) -> int:
    """Sequences that the ledgers tell of; the proof's are among them."""
    return sum(path.read_bytes().count(b"\n") for path in (folder / "work").glob("ledger-*.jsonl"))


class Killer:
    """Knows when whom to kill next."""

    def __init__(self, kills: int, chance: random.Random) -> None:
        kinds = [kind for _ in range(-(-kills // len(KINDS))) for kind in chance.sample(KINDS, len(KINDS))]
        self.left = kinds[:kills]
        self.chance = chance
        self.told: list[str] = []

    def aim(self, folder: Path) -> None:
        """Mostly while rows are written; now and then while the server starts, or the proof is made."""
        self.began = time.monotonic()
        self.after_s = self.chance.uniform(0.0, 25.0) if self.chance.random() < 0.25 else 0.0
        self.after_commits = committed(folder) + self.chance.randint(1, 25) if not self.after_s else 0

    def try_kill(self, child: psutil.Process, folder: Path) -> bool:
        if not self.left or time.monotonic() - self.began < self.after_s or committed(folder) < self.after_commits:
            return False
        kind = self.left[0]
        victim = child if kind == "client" else process_of(child, self.chance.choice(PROCESSES[kind]))
        if victim is None:  # it is not there yet
            return False
        time.sleep(self.chance.uniform(0.0, 0.05))
        try:
            victim.kill()
        except psutil.NoSuchProcess:  # it has just ended by itself
            return False
        self.told.append(f"{self.left.pop(0)} after {time.monotonic() - self.began:.1f} s, {committed(folder)} commits")
        return True


def test_killed_at_random_moments(root: Path, undisturbed: HiddenStates) -> None:
    seed = int(os.environ.get("EAGLE3_SEED", time.time_ns() % 10**6))
    killer = Killer(int(os.environ.get("EAGLE3_KILLS", "2")), random.Random(seed))
    print(f"EAGLE3_SEED={seed}, {len(killer.left)} kills")
    number = 0
    while killer.left:
        out, number = f"killed-{number}", number + 1
        until_complete(root, out, killer)
        require_same(root / out, undisturbed)
        print(f"{out}: equal to the undisturbed one after {'; '.join(killer.told) or 'no kill'}")
        killer.told.clear()


def until_complete(root: Path, out: str, killer: Killer) -> None:
    """Runs the same command until the dataset is complete, and kills meanwhile."""
    killer.aim(root / out)
    while True:
        argv = [sys.executable, "-c", CHILD, str(root), out]
        child = subprocess.Popen(argv, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        process = psutil.Process(child.pid)
        killed = 0
        while child.poll() is None:
            if killer.try_kill(process, root / out):
                killed += 1
                killer.aim(root / out)
            time.sleep(0.005)
        output = child.communicate()[0]
        if child.returncode == 0:
            return
        assert killed, output
        assert child.returncode == -signal.SIGKILL or "error: " in output, output
