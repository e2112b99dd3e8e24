"""Provenance of a run: of a sweep's job with the command that its user typed, not the one that started its process."""

import sys
from pathlib import Path
from typing import Any

from eagle3.config.provenance import provenance
from eagle3.config.secrets import redact
from eagle3.files.json_file import read_json
from eagle3.pipeline.sweep_table import JOB_RECORD, SWEEP_FILE, Record, varied_in


def made_by_command(run_dir: Path) -> dict[str, Any]:
    """Command, code, versions and machine; a shell takes the command of a sweep's job, and leaves its comment."""
    made = provenance(sys.argv)
    command, job = read_json(run_dir.parent / SWEEP_FILE).get("command"), read_json(run_dir / JOB_RECORD)
    if command is not None and "overrides" in job:
        items = " ".join(varied_in(run_dir.parent, Record(job["number"], job["overrides"])))
        made["command"] = f"{redact(str(command))}  # job {job['number']}: {items or 'as configured'}"
    return made
