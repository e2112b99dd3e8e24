"""Finished runs, as run.py leaves their folders, whose figures are known because a test chose them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


@dataclass
class Runs:
    """Run folders below one."""

    at: Path
    count: int = 0

    def add(
        self,
        config: dict[str, Any],
        shares: Sequence[float] = (),
        evaluate: str | None = None,
        bench: dict[str, float] | None = None,
        measured: str | None = None,
        not_followed: Sequence[str] = (),
        nccl_unused: bool = False,
        asked: int = 0,
        dataset: str = "0123456789",
        target: str = "t",
        **summary: float | str,
    ) -> Path:
        """A run that is finished.

        Args:
            config: nested; `seed` and `dataset` have defaults.
            shares: acceptance of each drafted token, of each of 20 held-out conversations alike; () of no evaluation.
            evaluate, measured: artifacts of the evaluation and of the measurement; one of its own by default.
            bench: figures of the served target.
            nccl_unused: as when it was measured on a CPU.
            asked: the first id of those conversations.
            dataset, target: fingerprints.
            summary: further figures, with __ in place of the slash.
        """
        folder = self.at / str(self.count)
        self.count += 1
        (folder / "report").mkdir(parents=True)
        every = {"name": "made", "seed": 0, **config}
        every["dataset"] = {"name": "jsonl", **config.get("dataset", {})}
        (folder / "config.yaml").write_text(json.dumps(every))  # JSON is YAML
        (folder / "DONE").touch()
        artifacts, figures = {}, {name.replace("__", "/"): value for name, value in summary.items()}
        made: dict[str, Any] = {"artifacts": artifacts, "target": {"fingerprint": target}}
        if config.get("until") != "bench":
            made["dataset"] = {"fingerprint": dataset}
        if shares:
            artifacts["evaluate"] = evaluate or f"evaluate/{folder.name}"
            figures |= {f"eval/cond_acc_step_{k}": share for k, share in enumerate(shares)}
            figures["eval/accept_length"] = float(1 + np.cumprod(shares).sum())
            reached = np.cumprod([1000.0, *shares[:-1]]).round().astype(np.int64)
            accepted = np.cumprod([1000.0, *shares])[1:].round().astype(np.int64)
            counts = {"reached": np.tile(reached, (20, 1)), "accepted": np.tile(accepted, (20, 1))}
            save_file(
                {"sample_ids": np.arange(asked, asked + 20), **counts}, folder / "report" / "sequences.safetensors"
            )
        if bench is not None:
            artifacts["bench"] = measured or f"bench/{folder.name}"
            figures |= {f"bench/{name}": value for name, value in bench.items()}
            told: dict[str, Any] = {"not_followed": list(not_followed), "version": None if nccl_unused else "2.29.7"}
            told["environment"] = {"NCCL_DEBUG": "INFO"}
            (folder / "report" / "nccl.json").write_text(json.dumps(told))
        (folder / "report" / "summary.json").write_text(json.dumps({"experiment": "made", **figures}))
        (folder / "provenance.json").write_text(json.dumps(made))
        return folder
