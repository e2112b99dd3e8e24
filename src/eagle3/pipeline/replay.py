"""A run that is repeated: what differs from when it was made, and whether the same drafter came out."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from eagle3.config import Config
from eagle3.config.differences import Difference, config_differences, differences, flat
from eagle3.config.load import option_file
from eagle3.config.origin import PROVENANCE, SNAPSHOT
from eagle3.errors import ConfigError
from eagle3.files.json_file import read_json
from eagle3.pipeline.closeness import figures_apart, weights_apart
from eagle3.pipeline.inputs import find_inputs
from eagle3.pipeline.stages import inputs_of, stages_of
from eagle3.server.patches import plugin_sha256
from eagle3.target.peek import peek_target
from eagle3.target.resolve import cache_folder

_STRICT = "replay.strict: the run would not be repeated as it was made; bring these back, or leave replay.strict away"


@dataclass
class Replay:
    """What `snapshot=replay` repeats: a run's folder, or a drafter's with what made it."""

    folder: Path
    strict: bool
    found: list[Difference] = field(default_factory=list)
    inputs_compared: bool = False

    @staticmethod
    def of(
        cfg: Config, choices: Mapping[str, Any], sources: Sequence[str], overrides: Sequence[str]
    ) -> "Replay | None":
        """None where nothing is repeated.

        Args:
            sources: the folders that Hydra composed from.
            overrides: those of the command line.

        Raises:
            ConfigError: `replay.strict` and nothing is repeated; or an override that would change nothing.
        """
        if choices.get("snapshot") is None:
            if cfg.replay.strict:
                raise ConfigError("replay.strict: nothing is repeated; add --config-dir RUN snapshot=replay")
            return None
        folder = next((Path(path) for path in sources if path and (Path(path) / SNAPSHOT).is_file()), None)
        if folder is None:
            return None
        _require_values(folder / SNAPSHOT, choices, overrides)
        return Replay(folder.resolve(), cfg.replay.strict)

    def _then(self) -> dict[str, Any]:
        return read_json(self.folder / PROVENANCE)

    def compare(self, now: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Code, versions and machine, before anything is written; prints what differs.

        Raises:
            ConfigError: something does, and `replay.strict` is set.
        """
        saved = self.folder / "config.yaml"
        before = OmegaConf.to_container(OmegaConf.load(saved)) if saved.is_file() else None
        then = {str(key): value for key, value in before.items()} if isinstance(before, dict) else dict(config)
        for change in config_differences(then, config):
            _say(f"configuration: {change}")
        made = self._then()
        if not made:
            self.found = [Difference(PROVENANCE, "what the run was made with", "not in the folder")]
        else:
            self.found = differences(made, {**now, "plugin_sha256": plugin_sha256()})
        self._tell("code, versions, plugin, machine", self.found)

    def compare_inputs_early(self, cfg: Config) -> None:
        """`compare_inputs` where target and dataset are on this machine, before anything is written.

        Raises:
            ConfigError: as compare; or an input is not there, or does not fit.
        """
        find_inputs(cfg)
        target = peek_target(cfg.target, cache_folder(cfg.paths.cache))
        if target is not None and Path(cfg.dataset.path).exists():
            self.compare_inputs(inputs_of(cfg, stages_of(cfg, target)))

    def compare_inputs(self, now: Mapping[str, Any]) -> None:
        """Target, dataset, and what an evaluation is given, once they are at hand and unless that was done; otherwise
        as `compare`."""
        if self.inputs_compared:
            return
        self.inputs_compared = True
        then, names = self._then(), ("target", "dataset", "evaluated")
        found = differences({name: then.get(name) for name in names}, {name: now.get(name) for name in names})
        self.found += found
        self._tell("target, dataset, and what was evaluated", found)

    def _tell(self, what: str, found: list[Difference]) -> None:
        if not found:
            _say(f"{what}: nothing differs")
            return
        _say(f"{what}: {len(found)} differ{'s' if len(found) == 1 else ''} from then")
        for difference in found:
            _say(f"  {difference}")
        if self.strict:
            raise ConfigError(f"{_STRICT}\n" + "\n".join(f"  {difference}" for difference in found))

    def record(self, outcome: str | None = None) -> dict[str, Any]:
        """For the repeating run's own provenance."""
        return {"of": str(self.folder), "differences": [str(one) for one in self.found], "outcome": outcome}

    def outcome(self, run_dir: Path) -> str:
        """Whether the drafter is the one that was made then, byte for byte; if not, how far from it."""
        name = "model.safetensors"
        folders = (self.folder / "drafter", self.folder)
        before = next((folder / name for folder in folders if (folder / name).is_file()), None)
        after = run_dir / "drafter" / name
        if before is None or not after.is_file():
            return f"repeats {self.folder}; there are no two drafters to compare"
        if before.read_bytes() == after.read_bytes():
            return f"the drafter is bitwise the same as that of {self.folder}"
        then, now = self._then(), read_json(run_dir / PROVENANCE)
        reports = (read_json(folder / "report" / "summary.json") for folder in (self.folder, run_dir))
        figures = figures_apart(*reports, same_training=_training(then) == _training(now) is not None)
        return f"the drafter is not bitwise that of {self.folder}: {weights_apart(before, after)}; {figures}"


def _require_values(snapshot: Path, choices: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raises ConfigError for another option of a group, which would change nothing: the snapshot's values come after
    it. One that was renamed since has to be named."""
    then = dict(_options(snapshot))
    for group in (item.lstrip("+").partition("=")[0] for item in overrides):
        option, before = choices.get(group), then.get(group)
        if option in (None, before) or group == "snapshot" or group.startswith("hydra/"):
            continue
        if before is None or option_file(group, before).is_file():
            raise ConfigError(
                f"{group}={option}: a snapshot holds every value, and what an option says does not change them; "
                f"give values{_such_as(group, str(option))}"
            )


def _options(snapshot: Path) -> Iterator[tuple[str, str]]:
    """(group, option) of the run, from the snapshot's `override /evaluate: chain`."""
    content = OmegaConf.to_container(OmegaConf.load(snapshot), resolve=False)
    for item in content.get("defaults") or [] if isinstance(content, dict) else []:
        if isinstance(item, dict):
            yield from ((str(key).removeprefix("override /"), str(option)) for key, option in item.items())


def _such_as(group: str, option: str) -> str:
    """The plain values that an option of the project's sets, as overrides."""
    name, _, package = group.partition("@")
    file = option_file(group, option)
    if not file.is_file() or "@package" in (text := file.read_text(encoding="utf-8")) or "defaults:" in text:
        return ""
    plainly = [
        f"{package or name}.{key}={value}"
        for key, value in flat(OmegaConf.to_container(OmegaConf.create(text)))
        if key and isinstance(value, str | int | float)
    ]
    return f", such as {shlex.join(plainly)}" if plainly else ""


def _training(made: Mapping[str, Any]) -> str | None:
    """The fingerprint of all that determines the drafter."""
    folder = (made.get("artifacts") or {}).get("train")
    return Path(folder).name if folder else None


def _is_run(folder: Path) -> bool:
    try:
        return (folder / SNAPSHOT).is_file()
    except OSError:  # a name that no file can have
        return False


def replay_hint(argv: Sequence[str], said: str) -> str | None:
    """What to do where a snapshot does not compose; None where none was asked for.

    Args:
        said: what is wrong; the snapshot is not to blame for a key or an option of the command line.
    """
    if "snapshot=replay" not in argv:
        return None
    for key, equals, value in (item.lstrip("+~").partition("=") for item in argv if item != "snapshot=replay"):
        if equals and (said.startswith(f"{key}:") or f"'{key}/{value}'" in said or said.startswith(f"{key}={value}:")):
            return None
    given = re.search(r"(?:^|\0)(?:--config-dir|-cd)[=\0]([^\0]+)", "\0".join(argv))
    folder = Path(given[1]) if given else None
    if folder is None or not _is_run(folder):
        return f"snapshot=replay: no {SNAPSHOT} in {folder or 'the search path'}; give --config-dir a run's folder"
    commit = (read_json(folder / PROVENANCE).get("git") or {}).get("commit")
    back = f"; `git checkout {commit}` has them as they were" if commit else ""
    return (
        f"{folder / SNAPSHOT} names options and keys of conf/ as they were called when the run was made. Say what an "
        "option is called now, e.g. target=NAME (every value stays the snapshot's), or correct the line in that file"
        f"{back}"
    )


def _say(text: str) -> None:
    print(f"replay: {text}", file=sys.stderr)
