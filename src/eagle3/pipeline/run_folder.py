"""A run's folder is its own: its name has the second in which the run was started, and two may be started in one."""

from itertools import count
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

_TIME = "${now:"


class RunFolderCallback(Callback):
    """Named in conf/config.yaml; Hydra calls it before it makes the run's folder, which it would share."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        run = config.hydra.run
        try:
            # A folder that somebody named, without the time in it, may be one that is there.
            if _TIME not in str(OmegaConf.to_container(run, resolve=False)):
                return
            folder = own_folder(Path(str(run.dir)))
        except (OSError, OmegaConfBaseException):
            return  # Hydra makes a warning of an error here; it meets the same one itself, and that is told
        with read_write(config), open_dict(config):
            config.hydra.run.dir = str(folder)


def own_folder(wanted: Path) -> Path:
    """Makes the folder, or where it is there already, the first of NAME_2, NAME_3, ... that is not. Raises OSError."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            if not folder.is_dir():
                raise
            continue
        return folder
    raise AssertionError
