"""Whether configuration and target fit: what training and evaluation would refuse from these two is said at once."""

from pathlib import Path

from eagle3.config import Config
from eagle3.config.validate import BENCH, STAGES, boundaries_of, require_captured
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError
from eagle3.evaluation.bench import require_lengths
from eagle3.evaluation.sets import HELD_OUT, longest_asked, prompt_file, read_set
from eagle3.pipeline.stages import left_out
from eagle3.server.arguments import installed
from eagle3.target.info import TargetInfo
from eagle3.target.peek import peek_target
from eagle3.target.resolve import cache_folder


def require_fit_early(cfg: Config) -> None:
    """`require_fit`, where the target is on this machine; else once it was fetched."""
    target = peek_target(cfg.target, cache_folder(cfg.paths.cache))
    if target is not None:
        require_fit(cfg, target)
    elif cfg.layers.boundaries and cfg.layers.capture:
        require_captured(cfg.layers.boundaries, cfg.layers.capture)


def require_fit(cfg: Config, target: TargetInfo) -> None:
    """Before a server starts.

    Raises:
        ConfigError: boundaries or a drafter that this target can't have, or longer prompts or answers than it takes.
        DataError: a file of `evaluate.prompts` is no prompt set.
        Eagle3Error: `evaluate.drafter` is faulty, or another target's.
    """
    if cfg.until == BENCH or cfg.bench.in_run:
        require_lengths(cfg, target)
    if cfg.until == BENCH:
        return
    boundaries, _ = boundaries_of(cfg, target.num_layers)
    last = STAGES.index(cfg.until)
    evaluates = last >= STAGES.index("evaluate")
    if evaluates and cfg.evaluate.kind != "simulated":
        _require_prompts(cfg, target)
    if "train" in left_out(cfg):
        if evaluates:
            _require_given_drafter(cfg, target, boundaries)
    elif last >= STAGES.index("train"):
        shape = DrafterShape.build(cfg.drafter, target, len(boundaries))
        if evaluates:
            _require_served("drafter", cfg, shape)


def _require_prompts(cfg: Config, target: TargetInfo) -> None:
    longest_asked(cfg, target.context_length)
    for name in cfg.evaluate.prompts:
        if name != HELD_OUT:
            read_set(prompt_file(name))


def _require_given_drafter(cfg: Config, target: TargetInfo, boundaries: list[int]) -> None:
    from eagle3.evaluation.open import checked, require_boundaries

    assert cfg.evaluate.drafter is not None
    folder = Path(cfg.evaluate.drafter)
    loaded = checked(folder, target, cfg.server.python, cfg.layers.boundaries)
    if cfg.evaluate.kind == "simulated":
        require_boundaries(folder, loaded, boundaries)
    _require_served(str(folder), cfg, loaded.drafter.shape)


def _require_served(what: str, cfg: Config, shape: DrafterShape) -> None:
    """Where the served drafter is to be measured, SGLang must have it as it is configured."""
    if cfg.evaluate.kind != "served":
        return
    from eagle3.drafter.capture import not_served

    if lacking := not_served(shape, installed(cfg.server.python).version):
        raise ConfigError(f"{what}: {'; '.join(lacking)}")
