"""What can be known to fail before a run starts anything or writes a file."""

from pathlib import Path

import numpy as np

from eagle3.config import Config
from eagle3.config.validate import STAGES
from eagle3.data.placement import read_prompts
from eagle3.data.space import dataset_bytes, require_space
from eagle3.errors import ConfigError
from eagle3.evaluation.bench import bench_command
from eagle3.pipeline.fit import require_fit_early
from eagle3.pipeline.gpus import require_gpus
from eagle3.pipeline.imported import is_imported
from eagle3.pipeline.inputs import find_inputs
from eagle3.pipeline.stages import artifacts_root, left_out
from eagle3.server.flags import server_command
from eagle3.tracking.run import require_login


def check_start(cfg: Config) -> None:
    """What can be known to fail before anything is written; makes the paths of inputs absolute.

    Raises:
        ConfigError: no W&B login, an input that is not there, a GPU that is not there, too small a disk; a flag or a
            version of SGLang that the dump can't be taken with; a target that is here and does not fit.
    """
    require_login(cfg.tracking)
    find_inputs(cfg)
    require_gpus(cfg)
    _require_server(cfg)
    if cfg.bench.in_run:
        bench_command(cfg, cfg.target.path)
    require_fit_early(cfg)
    _require_space_early(cfg)


def require_ranks(cfg: Config, prompts: Path) -> None:
    """Each rank trains on its own sequences and measures its own: known once the prompts are, before the long part.

    Args:
        prompts: prepare's folder.

    Raises:
        ConfigError: there are more ranks than sequences of either kind.
    """
    ranks = cfg.trainer.devices * cfg.trainer.nodes
    if ranks == 1 or "train" in left_out(cfg) or STAGES.index(cfg.until) < STAGES.index("train"):
        return
    path, (sides,) = read_prompts(prompts, ("held_out",))
    held_out = int(np.count_nonzero(sides))
    most = min(held_out, len(sides) - held_out)
    if ranks > most:
        raise ConfigError(
            f"trainer.devices: {ranks} ranks, each of which needs a sequence to train on and one that is held out; "
            f"{path} has {len(sides) - held_out} and {held_out}. Give at most {most} devices, more conversations, or "
            f"another share in dataset.held_out ({cfg.dataset.held_out})"
        )


def _require_server(cfg: Config) -> None:
    """Flags are checked against the installed SGLang now, and its version, not when the server's turn comes."""
    if cfg.evaluate.kind == "served" and cfg.until in ("evaluate", "report"):
        from eagle3.evaluation.served import served_command

        for draft in cfg.evaluate.drafts:
            served_command(cfg, Path(cfg.target.path), Path("drafter"), draft, Path("capture"))
    if is_imported(cfg):
        return
    if cfg.until != "prepare" and "extract" not in left_out(cfg):
        server_command(cfg, "extraction", cfg.target.path)
    if cfg.prepare.regenerate:
        server_command(cfg, "serving", cfg.target.path)


def _require_space_early(cfg: Config) -> None:
    """With the expected size in the config, a disk that is too small is refused before a model is even fetched."""
    if cfg.dataset.tokens is None or cfg.target.shape is None or cfg.until == "prepare":
        return
    capture = cfg.layers.capture or cfg.layers.boundaries
    states = (len(capture) if capture else 3) + 1
    base = artifacts_root(cfg) / "extract"
    needed = dataset_bytes(cfg.dataset.tokens, cfg.target.shape.hidden_size, states, cfg.dataset.dtype)
    if not any(base.glob("*/*/DONE")) and not any(base.glob("*/*/manifest.json")):
        require_space(needed, base)
