"""What is wrong with a sweep's command: Hydra takes one that does not compose for a single run, and says so."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from eagle3.config.load import PROJECT

_TAKEN_FOR_A_RUN = re.compile(r"Ambiguous value for argument|Sweep parameters '.*' requires --multirun")


def sweep_mistake(error: Exception, argv: Sequence[str]) -> Exception:
    """The error to explain: `error`, or what keeps the command from being the sweep that its choices ask for.

    Args:
        error: what the run with this command line ended with.
        argv: the command line, its program first.
    """
    if not _TAKEN_FOR_A_RUN.match(str(error)):
        return error
    given = get_args_parser().parse_args(list(argv[1:]))
    search_path = create_automatic_config_search_path(str(PROJECT / "run.py"), None, "conf")
    if given.config_dir is not None:
        folder = f"file://{Path(given.config_dir).absolute()}"
        search_path.prepend("command-line", folder, SearchPathQuery(provider="schema"))  # as hydra.main does
    try:
        hydra = Hydra.create_main_hydra2(task_name="run", config_search_path=search_path)
        hydra.compose_config(
            config_name=given.config_name or "config",
            overrides=given.overrides,
            run_mode=RunMode.MULTIRUN,
            validate_sweep_overrides=False,
        )
    except (HydraException, OmegaConfBaseException, YAMLError) as cause:
        return cause
    finally:
        GlobalHydra.instance().clear()
    return error
