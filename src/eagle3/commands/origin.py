"""What `eagle3 inspect` says of how something was made, from the texts that go with it, and how to make it again."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle3.config.differences import differences
from eagle3.config.origin import KEY, PROVENANCE, SNAPSHOT, write_origin
from eagle3.config.provenance import provenance
from eagle3.errors import ConfigError, DataError
from eagle3.files.json_file import json_or_empty
from eagle3.server.patches import plugin_sha256
from eagle3.tracking.summary import replay_command

Facts = Iterator[tuple[str, str]]
"""(label, text) lines; a label is empty where the text goes on."""

_WITHIN = 3
"""Parts of an artifact's path that say which it is: artifacts/train/<fingerprint>."""


def made_of(folder: Path) -> dict[str, Any]:
    """Provenance of the run that a drafter lies in, or was exported from."""
    return json_or_empty(folder.absolute().parent / PROVENANCE) or json_or_empty(folder / PROVENANCE)


def part(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object in a record that people may have edited; {} where it is missing or something else."""
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def artifacts_of(run: Path) -> dict[str, Path]:
    """By stage, the folders that a run or a drafter noted, where they are now: also where they were moved or copied
    together with it, as in a repository. {} where none are noted."""
    noted = part(json_or_empty(run / PROVENANCE), "artifacts")
    return {stage: _now(Path(str(folder)), run.absolute()) for stage, folder in noted.items()}


def _now(noted: Path, run: Path) -> Path:
    if not noted.exists():
        within = noted.parts[-_WITHIN:]
        for above in run.parents:
            if len(within) == _WITHIN and (found := above.joinpath(*within)).is_dir():
                return found
    return noted


def config_of(folder: Path) -> dict[str, Any]:
    """The experiment's configuration, from the training or run that left the folder; {} where it has none.

    Raises DataError where it can't be read.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if found := part(json_or_empty(folder / "job.json"), "config"):
        return found
    file = folder / "config.yaml"
    if not file.is_file():
        return {}
    try:
        found = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise DataError(f"{file}: not a run's configuration ({error}). Restore it, or remove it.") from error
    return found if isinstance(found, dict) else {}  # type: ignore[return-value]


def made_by(texts: Mapping[str, str], folder: Path) -> Facts:
    """The command, the code, what has changed since, and the command that repeats it from `folder`."""
    if PROVENANCE in texts:
        made = json.loads(texts[PROVENANCE])
        yield "command", str(made.get("command", "unknown"))
        git = made.get("git") or {}
        if git.get("commit"):
            yield "code", f"{git['commit']}{', with local changes' if git.get('dirty') else ''}"
        changed = differences(made, {**provenance([]), "plugin_sha256": plugin_sha256()})
        yield from (("now differs", str(difference)) for difference in changed)
    if SNAPSHOT in texts:
        yield "repeat", replay_command(folder.resolve())


def checkpoint(path: Path) -> Facts:
    """Raises TrainingError where it can't be read, or holds more than data."""
    from eagle3.training.checkpoints import load_checkpoint

    found = load_checkpoint(path, mapped=True)
    yield "state", f"after step {found.get('global_step', '?')}, epoch {found.get('epoch', '?')}"
    out = path.with_name(f"{path.stem}-made-by")
    texts = found.get(KEY) or {}
    for label, text in made_by(texts, out):
        if label == "repeat":
            yield "repeat", f"eagle3 inspect {shlex.quote(str(path))} --snapshot {shlex.quote(str(out))}"
            yield "", f"and then {text}"
        else:
            yield label, text


def extract_snapshot(path: Path, out: Path) -> None:
    """Writes what made a checkpoint into a folder, which `--config-dir` then takes.

    Raises:
        ConfigError: it has none.
    """
    from eagle3.training.checkpoints import load_checkpoint

    texts = load_checkpoint(path, mapped=True).get(KEY) or {}
    if SNAPSHOT not in texts:
        raise ConfigError(f"{path}: no snapshot is in it; it was saved before checkpoints carried one")
    write_origin(texts, out)
    print(f"{out}: {replay_command(out.resolve())}")
