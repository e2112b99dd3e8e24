"""What is known of a target without a network: for a plan, which downloads nothing."""

from pathlib import Path

from eagle3.config.schema import TargetConfig
from eagle3.target.gguf import converted_folder
from eagle3.target.info import TargetInfo, check_shape, read_info
from eagle3.target.resolve import hub_snapshot


def peek_target(cfg: TargetConfig, cache: Path) -> TargetInfo | None:
    """The target as `resolve_target` would describe it, where it is on this machine already; None where it is not.

    Raises:
        ConfigError: it is there and the config does not fit it.
    """
    found = _local(cfg, cache)
    if found is None:
        return None
    folder, source = found
    info = read_info(folder, cfg.name, source, cfg.text_prefix, cfg.trust_remote_code)
    check_shape(info, cfg.shape)
    return info


def _local(cfg: TargetConfig, cache: Path) -> tuple[Path, str] | None:
    path = Path(cfg.path).expanduser()
    if path.is_dir():
        return path, "local"
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = hub_snapshot(cfg, local_only=True)
        if (folder / "config.json").exists():
            return folder, f"hub:{cfg.path}@{folder.name}"
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        pass
    if cfg.pypi is not None and (folder := converted_folder(cfg.pypi, cache)).is_dir():
        return folder, f"pypi:{cfg.pypi}"
    return None
