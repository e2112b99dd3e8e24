"""What a child process is told to do: the JOB.json that its parent wrote."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from eagle3.config.load import load
from eagle3.config.schema import Config
from eagle3.errors import ConfigError
from eagle3.target.info import TargetInfo, read_info


@dataclass(frozen=True)
class Job:
    config: Config
    plain: dict[str, Any]
    """The configuration as plain containers."""
    dataset: Path
    """Folder of the hidden states."""
    prompts: Path
    """Folder of prepare."""
    target: TargetInfo
    boundaries: list[int]
    out: Path
    logs: Path
    """Folder for what ranks write."""
    drafter: Path | None
    """Folder of the trained drafter; evaluation only."""
    made_by: Path | None
    """Folder of the run, whose snapshot and provenance go with the drafter."""

    @staticmethod
    def load(path: Path) -> "Job":
        """Raises ConfigError where the file, or the configuration in it, is not what it should be."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            config = load(raw["config"])
            target = read_info(
                Path(raw["target"]),
                name=config.target.name,
                text_prefix=raw["text_prefix"],
                trust_remote_code=config.target.trust_remote_code,
            )
            return Job(
                config=config,
                plain=raw["config"],
                dataset=Path(raw["dataset"]),
                prompts=Path(raw["prompts"]),
                target=target,
                boundaries=[int(b) for b in raw["boundaries"]],
                out=Path(raw["out"]),
                logs=Path(raw.get("logs") or raw["out"]),
                drafter=Path(raw["drafter"]) if raw.get("drafter") else None,
                made_by=Path(raw["made_by"]) if raw.get("made_by") else None,
            )
        except OmegaConfBaseException as error:
            raise ConfigError(f"{path}: {error}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is not a job ({type(error).__name__}: {error}); the pipeline writes it."
            ) from error
