"""One job at a time a GPU: where several jobs of a sweep run on one machine, each takes a device that is free.

Locks are the kernel's (flock), in the machine's own temporary folder: they go with their owner, and hold for every
sweep of this user on this machine.
"""

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from eagle3.errors import ConfigError

POLL_S = 0.5


@dataclass(frozen=True)
class Taken:
    """What a job got."""

    environment: dict[str, str] = field(default_factory=dict)
    descriptors: tuple[int, ...] = ()
    """To be kept open by the job's processes: a device is free once all of them have ended."""


@contextmanager
def taken(devices: Sequence[str], note: Callable[[str], None]) -> Iterator[Taken]:
    """Holds one of the devices, as soon as one is free; without any named, whatever the launcher gives is used.

    Args:
        devices: each as CUDA_VISIBLE_DEVICES takes it: a number, several ("0,1"), or an id.
        note: is told once where all of them are held.

    Raises:
        ConfigError: a device that is no word.
    """
    if not devices:
        yield Taken()
        return
    told = False
    with ExitStack() as stack:
        while True:
            for device in devices:
                descriptors = _try(device, stack)
                if descriptors is not None:
                    yield Taken({"CUDA_VISIBLE_DEVICES": device}, descriptors)
                    return
            if not told:
                note(f"sweep.devices: all of {', '.join(devices)} are in use; waiting for one")
            told = True
            time.sleep(POLL_S)


def _try(device: str, keep: ExitStack) -> tuple[int, ...] | None:
    """Locks every part of a device, to be freed by `keep`; None, and nothing held, where one is held by another."""
    folder = Path(tempfile.gettempdir()) / f"eagle3-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptors = []
    with ExitStack() as stack:
        for part in device.split(","):
            if not re.fullmatch(r"[\w.:-]+", part):
                raise ConfigError(f"sweep.devices: {device!r}; give what CUDA_VISIBLE_DEVICES takes, e.g. 0 or '0,1'")
            file = stack.enter_context((folder / part).open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            descriptors.append(file.fileno())
        keep.push(stack.pop_all())
    return tuple(descriptors)
