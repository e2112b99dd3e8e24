"""Two runs that are started in the same second have a folder each."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import setup_globals
from omegaconf import OmegaConf

from eagle3 import config
from eagle3.pipeline.run_folder import own_folder

not_warned_of = pytest.mark.filterwarnings("error::UserWarning")
"""Hydra makes a UserWarning of an error in a callback. Only that: other tests leave open files, and a ResourceWarning
comes when they are collected, which may be now."""


@pytest.fixture(autouse=True)
def _one_second() -> Iterator[None]:
    config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config.PROJECT / "conf"), version_base="1.3"):
        OmegaConf.register_new_resolver("now", lambda pattern: "2026-11-30_15-05-34", replace=True)
        yield
    GlobalHydra.instance().clear()
    setup_globals()  # the real one again


def folder_of(runs: Path, *more: str) -> Path:
    """What Hydra is about to make for a run."""
    given = ["experiment=quickstart", f"paths.runs={runs}", *more]
    composed = compose("config", given, return_hydra_config=True)
    Callbacks(composed).on_run_start(config=composed, config_name="config")
    return Path(str(composed.hydra.run.dir))


@not_warned_of
def test_runs_of_one_second_have_a_folder_each(tmp_path: Path) -> None:
    names = ["2026-11-30_15-05-34", "2026-11-30_15-05-34_2", "2026-11-30_15-05-34_3"]
    assert [folder_of(tmp_path) for _ in names] == [tmp_path / "quickstart" / name for name in names]


@not_warned_of
def test_a_folder_that_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    wanted = tmp_path / "mine"
    wanted.mkdir()
    assert folder_of(tmp_path, f"hydra.run.dir={wanted}") == wanted


@not_warned_of
def test_a_place_that_can_not_be_is_left_to_hydra(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert folder_of(tmp_path / "file") == tmp_path / "file" / "quickstart" / "2026-11-30_15-05-34"


def test_no_two_of_many_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: own_folder(tmp_path / "run"), range(64)))
    assert len(set(made)) == 64
    assert all(folder.is_dir() for folder in made)
