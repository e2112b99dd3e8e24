"""The single checks of `eagle3 doctor`. None imports torch: its version and CUDA are read from its version file."""

import ast
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle3.errors import Eagle3Error

Verdict = Literal["ok", "warn", "fail"]
GIB = 1 << 30
LITTLE_DISK, NO_DISK = 20 * GIB, 2 * GIB
LITTLE_SHM = GIB
LITTLE_MEMORY = 8 * GIB
PYTHONS = ((3, 11), (3, 13))
HUB_TIMEOUT_S = 4.0
_CPU_ONLY = "experiment=quickstart runs here; for others add server=cpu trainer=cpu, or use a machine with a GPU"


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it."""

    verdict: Verdict
    found: str
    remedy: str = ""


def python() -> Finding:
    """The interpreter, within what the dependencies run on."""
    have = f"{sys.version.split()[0]} ({sys.executable})"
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return Finding("ok", have)
    low, high = (".".join(map(str, version)) for version in PYTHONS)
    return Finding("fail", have, f"install Python {low} to {high} and run `make install` with PYTHON=python{low}")


def packages() -> Finding:
    """Every requirement of eagle3 itself, at the version that it asks for."""
    from packaging.requirements import Requirement

    wrong, right = [], 0
    for text in importlib.metadata.requires("eagle3") or []:
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            have = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{need.name} is missing")
            continue
        if need.specifier.contains(have, prereleases=True):
            right += 1
        else:
            wrong.append(f"{need.name} {have} is not {need.specifier}")
    if wrong:
        return Finding("fail", "; ".join(wrong), "`make install`")
    return Finding("ok", f"all {right} required ones are there")


def sglang(interpreter: str | None) -> Finding:
    """SGLang of `interpreter` (None: this one) against the versions that the dump plugin was made for."""
    from eagle3.server.arguments import installed
    from eagle3.server.patches import dump_versions

    try:
        version = installed(interpreter).version
        versions = dump_versions()
    except Eagle3Error as error:
        return Finding("fail", str(error), "`make install`, or name SGLang's interpreter in server.python")
    text = f"{version}; the dump plugin fits {versions.oldest} to {versions.newest}"
    if versions.hold(version):
        return Finding("ok", text)
    remedy = f"install SGLang {versions.newest} in an environment of its own and name its interpreter in server.python"
    return Finding("fail", text, remedy)


def gpu() -> Finding:
    """GPUs, the driver's CUDA, and whether the installed torch can use them."""
    built = torch_cuda()
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no module, no driver, no permission: each means that there is none to use
        return Finding("warn", "none found", _CPU_ONLY)
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        code = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        names: dict[str, int] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            name = f"{_text(pynvml.nvmlDeviceGetName(handle))} ({memory / GIB:.0f} GiB)"
            names[name] = names.get(name, 0) + 1
    except pynvml.NVMLError as error:
        return Finding(
            "fail", f"the driver answers, but not for its GPUs: {error}", "restart the driver or the machine"
        )
    finally:
        pynvml.nvmlShutdown()
    supported = (code // 1000, code % 1000 // 10)
    text = ", ".join(f"{count} x {name}" for name, count in names.items())
    text += f"; driver {driver}, CUDA {supported[0]}.{supported[1]}; torch is built for CUDA {built}"
    if built is None:
        return Finding("fail", text, "install a torch with CUDA: `make install`")
    if int(built.split(".")[0]) > supported[0]:
        return Finding("fail", text, f"update the driver to one for CUDA {built}, or install a torch for an older CUDA")
    return Finding("ok", text)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def torch_cuda() -> str | None:
    """The CUDA version that torch is built for; None without one."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    source = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "cuda" and node.value is not None:
            return ast.literal_eval(node.value)
    return None


def memory() -> Finding:
    """Memory and cores of the machine."""
    import psutil

    total = psutil.virtual_memory().total
    text = f"{total / GIB:.0f} GiB, {len(os.sched_getaffinity(0))} cores"
    if total < LITTLE_MEMORY:
        return Finding("warn", text, f"the quickstart wants {LITTLE_MEMORY // GIB} GiB; other experiments more")
    return Finding("ok", text)


def disk(folder: Path, key: str) -> Finding:
    """Room and permission where `key` will put files."""
    there = folder.expanduser().absolute()
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK):
        return Finding("fail", f"{folder}: {there} can't be written", f"make it writable, or choose {key}=/folder")
    free = shutil.disk_usage(there).free
    text = f"{free / GIB:,.0f} GiB free for {folder}"
    remedy = f"free some, or choose a larger disk with {key}=/folder; mode=plan shows what an experiment needs"
    if free < NO_DISK:
        return Finding("fail", text, remedy)
    return Finding("warn", text, remedy) if free < LITTLE_DISK else Finding("ok", text)


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Shared memory: NCCL, SGLang and data loaders talk through it."""
    if not folder.is_dir():
        return Finding("fail", f"{folder} is missing", "mount a tmpfs there")
    total = shutil.disk_usage(folder).total
    text = f"{total / GIB:,.1f} GiB in {folder}"
    if total < LITTLE_SHM:
        return Finding("warn", text, "several GPUs need more: `docker run --shm-size=16g` or `--ipc=host`")
    return Finding("ok", text)


def ports() -> Finding:
    """Whether a server can listen on the loopback interface."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=2.0):
                return Finding("ok", "127.0.0.1 can be listened on (server.port=0 takes a free port)")
    except OSError as error:
        return Finding(
            "fail", f"127.0.0.1 can't be listened on: {error}", "bring the loopback interface up (`ip link`)"
        )


def wandb_login() -> Finding:
    """A W&B login, which only tracking=online needs."""
    from eagle3.tracking.login import find_login

    where = find_login()
    if where is not None:
        return Finding("ok", f"logged in, by {where}")
    return Finding("warn", "no login; tracking=offline, the default, needs none", "`wandb login` for tracking=online")


def hub() -> Finding:
    """Whether models and datasets can be fetched."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Finding("warn", "switched off by HF_HUB_OFFLINE", "unset it to fetch models; local folders need no hub")
    import httpx

    try:
        httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        remedy = "give target.path a local folder; target=smollm2 comes from its Python package then"
        return Finding("warn", f"{constants.ENDPOINT} can't be reached: {error}", remedy)
    return Finding("ok", f"{constants.ENDPOINT} answers")
