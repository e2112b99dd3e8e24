"""What the dump costs a running SGLang server: the same prompts with and without it, in turn, on one server.

    python bench/extract.py 1b --folder /dev/shm/bench                    # a GPU; random Llama, hidden 2048, 16 layers
    python bench/extract.py 8b --folder /dev/shm/bench                    # the shape of Llama-3.1-8B
    python bench/extract.py FOLDER_OF_A_MODEL server=cpu --tokens 6000    # any model, here on a CPU

Without the dump requests carry names that are not the dataset's, so the plugin leaves them alone. With it a round ends
when every sequence is committed and every shard is final: checksums, fdatasync and manifest included. Each round of
either kind sends the same number of tokens with the same concurrency through the same client. A round's shards are
deleted after it, and as much memory is written to before the first: a virtual machine's host hands out each page at its
first use, which costs several times what the writing does.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir

from eagle3.config.load import PROJECT, load, register
from eagle3.config.schema import Config
from eagle3.data.assembly import Assembly
from eagle3.data.layout import StateShape, state_names
from eagle3.data.ledger import LedgerTail
from eagle3.data.meter import Meter
from eagle3.data.placement import Placement, Prompts, place, write_placement
from eagle3.data.session import Session, next_group
from eagle3.data.spreading import spread
from eagle3.data.writer import blank_manifest
from eagle3.metrics import JsonlReporter
from eagle3.server.client import Client
from eagle3.server.flags import server_command
from eagle3.server.launch import Server

NONCE = "bench"
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}


@dataclass
class Round:
    dumped: bool
    tokens: int
    seconds: float
    """Until everything is where it belongs."""
    client_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def random_model(name: str, folder: Path) -> Path:
    """A folder with a configuration and no weights: SGLang makes random ones."""
    shape = SHAPES[name]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 8,
        "head_dim": shape["hidden_size"] // shape["num_attention_heads"],
        "vocab_size": 128256 if name == "8b" else 32000,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        **shape,
    }
    path = folder / f"model-{name}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def make_prompts(tokens: int, mean: int, vocabulary: int, context: int, first_id: int) -> Prompts:
    """Random ids; lengths from a half to one and a half times the mean, the same in every round."""
    chance = np.random.default_rng(0)
    lengths = []
    while sum(lengths) < tokens:
        lengths.append(min(int(chance.integers(mean // 2, mean * 3 // 2)), context))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = chance.integers(10, vocabulary - 10, int(offsets[-1]), dtype=np.int32)
    return Prompts(ids, np.ones(len(ids), np.uint8), offsets, first_id + np.arange(len(lengths)))


def placed(prompts: Prompts, shape: StateShape, shard_gib: float, context: int, number: int) -> Placement:
    one = place(prompts, shape, shard_gib, context)
    return replace(one, shards=[replace(plan, file=f"round-{number}-{plan.file}") for plan in one.shards])


async def plain_round(client: Client, placement: Placement, number: int) -> Round:
    began = time.perf_counter()
    todo = spread(range(len(placement)), placement.shard, placement.length)
    running: dict[asyncio.Task[None], int] = {}
    while True:
        room = client.concurrency - sum(running.values())
        while room > 0 and (group := next_group(placement.length, todo, room, client.concurrency)):
            prompts = [placement.input_ids(i).tolist() for i in group]
            task = asyncio.ensure_future(client.prefill(prompts, [f"plain-{number}-{i}" for i in group]))
            running[task] = len(group)
            room -= len(group)
        if not running:
            break
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            del running[task]
    seconds = time.perf_counter() - began
    return Round(False, placement.tokens, seconds)


async def dump_round(session: Session, placement: Placement) -> Round:
    began = time.perf_counter()
    await session.stream()
    session.assembly.collect(wait=True)
    return Round(True, placement.tokens, time.perf_counter() - began)


async def measure(cfg: Config, server: Server, placements: list[Placement], folder: Path) -> list[Round]:
    """The first two rounds, one of each kind, warm up; then pairs, the order within a pair changing."""
    out: list[Round] = []
    async with Client(server.url, cfg.server.concurrency, timeout_s=600) as client:
        for number, placement in enumerate(placements):
            manifest = blank_manifest(placement.shards[0].layout.shape, placement, {"name": "bench", "fingerprint": ""})
            for dumped in (False, True) if number % 2 == 0 else (True, False):
                cpu = time.process_time()
                if not dumped:
                    out.append(await plain_round(client, placement, number))
                else:
                    assembly = Assembly(folder, placement, manifest)
                    assembly.resume(iter(()))
                    tail = LedgerTail(folder / "work")
                    reporter = JsonlReporter(folder / "metrics.jsonl")
                    session = Session(server, client, assembly, None, tail, NONCE, Meter(reporter), 300)  # type: ignore[arg-type]
                    out.append(await dump_round(session, placement))
                    assembly.close()
                    for plan in placement.shards:
                        (folder / plan.file).unlink()
                last = out[-1]
                last.client_cpu_s = time.process_time() - cpu
                memory = gpu_memory()
                print(
                    f"{'warm-up' if number == 0 else f'pair {number}':8} {'dump' if dumped else 'no dump':8} "
                    f"{last.rate:>10,.0f} tokens/s  {last.seconds:6.2f} s (client's CPU {last.client_cpu_s:.2f} s)"
                    + (f"  GPU {memory:,} MiB" if memory else ""),
                    flush=True,
                )
    return out


def gpu_memory() -> int | None:
    """MiB in use on the first GPU; None without one."""
    try:
        command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def touch(folder: Path, nbytes: int) -> None:
    """Has the machine hand out so much memory once: a virtual one gets each page of it from its host at first use."""
    part, files = bytes(1 << 24), os.cpu_count() or 1

    def fill(path: Path) -> None:
        with path.open("wb") as file:
            for _ in range(nbytes // files // len(part)):
                file.write(part)

    paths = [folder / f"touched-{number}" for number in range(files)]
    with ThreadPoolExecutor(files) as pool:
        list(pool.map(fill, paths))
    for path in paths:
        path.unlink()


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="1b, 8b, or the folder of a model")
    parser.add_argument("overrides", nargs="*", help="of the configuration, e.g. server=cpu")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/eagle3-bench"))
    parser.add_argument("--tokens", type=int, default=1_000_000, help="a round")
    parser.add_argument("--length", type=int, default=512, help="mean tokens of a prompt")
    parser.add_argument("--pairs", type=int, default=4)
    args = parser.parse_args()
    with emptied(args.folder) as folder:
        dummy = args.model in SHAPES
        model = random_model(args.model, folder) if dummy else Path(args.model)
        shape = json.loads((model / "config.json").read_text())
        layers = shape["num_hidden_layers"]
        boundaries = [2, layers // 2, layers - 3]
        register()
        with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
            overrides = [
                "target=local",
                "target.name=bench",
                f"target.path={model}",
                "dataset=jsonl",
                "dataset.path=none",
            ]
            cfg = load(compose("config", [*overrides, *args.overrides]))
        states = StateShape(tuple(state_names(boundaries)), shape["hidden_size"], cfg.dataset.dtype)
        context = min(4096, shape["max_position_embeddings"] - 8)
        placements = []
        first = 0
        for number in range(args.pairs + 1):
            prompts = make_prompts(args.tokens, args.length, shape["vocab_size"], context, first)
            first += len(prompts.sample_ids)
            placements.append(placed(prompts, states, cfg.dataset.shard_gib, context, number))
        write_placement(folder / "work", placements, NONCE)
        touch(folder, args.tokens * states.token_bytes * 11 // 10)
        random = {"load_format": "dummy"} if dummy else {}
        command = server_command(cfg, "extraction", model, dump=folder / "work", extra=random)
        print(
            f"SGLang {command.sglang_version}, {states.token_bytes:,} bytes a token, boundaries {boundaries}",
            flush=True,
        )
        began = time.perf_counter()
        log = folder / "server.log"
        try:
            with Server.start(command, log=log, timeout_s=580, work=folder / "work") as server:
                print(f"server ready in {time.perf_counter() - began:.0f} s", flush=True)
                rounds = asyncio.run(measure(cfg, server, placements, folder))
                status = server.dump_status()
        except BaseException as error:
            tail = log.read_text(errors="replace")[-6000:] if log.exists() else ""
            raise SystemExit(f"{tail}\n{type(error).__name__}: {error}") from None
    report(rounds[2:], states, status)


def report(rounds: list[Round], states: StateShape, status: dict[str, Any]) -> None:
    dump = [r.rate for r in rounds if r.dumped]
    plain = [r.rate for r in rounds if not r.dumped]
    ratios = sorted(d / p for d, p in zip(dump, plain, strict=True))
    rate = statistics.median(dump)
    print(f"no dump: median {statistics.median(plain):,.0f} tokens/s, {min(plain):,.0f} to {max(plain):,.0f}")
    print(
        f"dump:    median {rate:,.0f} tokens/s, {min(dump):,.0f} to {max(dump):,.0f}; "
        f"{rate * states.token_bytes / 1e9:.2f} GB/s"
    )
    print(
        f"in the server's forward thread: {status['spent_s']:.2f} s, of which {status['stalled_s']:.2f} s waiting "
        f"for one of {status['buffers']} buffers ({status['stalls']} times); error {status['error']}"
    )
    print(
        f"dump / no dump: {statistics.median(dump) / statistics.median(plain):.1%} of medians; "
        f"pairs: median {statistics.median(ratios):.1%}, {ratios[0]:.1%} to {ratios[-1]:.1%}"
    )


if __name__ == "__main__":
    main()
