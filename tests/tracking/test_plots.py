"""The report's pictures of stages that had next to nothing to tell: no warning, and no picture of nothing."""

import json
import warnings
from pathlib import Path

from eagle3.tracking.plots import write_plots


def stage(folder: Path, metric: str, values: list[float]) -> Path:
    folder.mkdir()
    rows = [{"time": 1.0 + i, "step": i, "values": {metric: value}} for i, value in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_stage_too_short_for_a_rate_has_no_picture_of_it(tmp_path: Path) -> None:
    extract = stage(tmp_path / "extract", "extract/tokens_per_s", [0.0, 0.0])
    train = stage(tmp_path / "train", "train/tokens_per_s", [0.0, 900.0, 1000.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write_plots({"extract": extract}, tmp_path / "none") == []
        assert [path.name for path in write_plots({"extract": extract, "train": train}, tmp_path / "one")] == [
            "throughput.png"
        ]
