"""speculators' format from 0.5 on: token ids and loss masks in an Arrow dataset, states in `hidden_states/`.

`hs_<i>.safetensors` of row i holds `token_ids [S]` and `hidden_states [S, K+1, H]`. Its last state is from before the
final norm; speculators' trainer norms it with the target's weight.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from eagle3.data.exchange.formats import REMEDY, Format, Source, Stored, Tokens, require_shapes
from eagle3.errors import DataError

FOLDER = "hidden_states"
STATE = "state.json"
"""Of an Arrow dataset; renamed last, so that it is there with all of it or not at all."""


def load(path: Path) -> Stored:
    try:
        with safe_open(path, "pt") as file:
            names = set(file.keys())
            if "hidden_states_scales" in names:
                raise DataError(f"{path}: states in 8 bits; only those in bfloat16 are read.")
            if not {"token_ids", "hidden_states"} <= names:
                raise DataError(f"{path} should hold token_ids and hidden_states, and holds {sorted(names)}.")
            ids, states = file.get_tensor("token_ids"), file.get_tensor("hidden_states")
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} can't be read, it is truncated or no safetensors file ({error}). {REMEDY}") from None
    columns = list(states.unbind(1)) if states.dim() == 3 else [states]
    return require_shapes(path, Stored(ids, torch.empty(0, dtype=torch.int64), columns))


def save(path: Path, stored: Stored) -> None:
    save_file({"token_ids": stored.input_ids, "hidden_states": torch.stack(stored.columns, dim=1)}, path)


def open_folder(folder: Path) -> Source:
    import datasets

    try:
        rows = datasets.load_from_disk(str(folder)).with_format("numpy")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: not an Arrow dataset as speculators' prepare-data writes it ({error}).") from None
    if not isinstance(rows, datasets.Dataset) or not {"input_ids", "loss_mask"} <= set(rows.column_names):
        raise DataError(f"{folder}: an Arrow dataset without input_ids and loss_mask: not one of speculators'.")
    states = folder / FOLDER
    there = {path.name for path in states.iterdir()} if states.is_dir() else set()
    kept = [i for i in range(len(rows)) if f"hs_{i}.safetensors" in there]
    if not kept:
        raise DataError(
            f"{states}: no hs_<i>.safetensors there. Put a link to the folder that holds them in its place."
        )

    def tokens(k: int) -> Tokens:
        row = rows[kept[k]]
        return np.asarray(row["input_ids"], np.int32), (np.asarray(row["loss_mask"]) != 0).astype(np.uint8)

    files = [states / f"hs_{i}.safetensors" for i in kept]
    return Source(folder, files, kept, tokens, len(rows) - len(kept), tables=sorted(folder.glob("*.arrow")))


def finish(folder: Path, tokens: Iterator[Tokens], count: int) -> None:
    """The Arrow dataset, written beside and moved."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    ints = datasets.Sequence(datasets.Value("int64"))
    features = datasets.Features({"input_ids": ints, "loss_mask": ints, "seq_len": datasets.Value("int64")})
    beside = folder / ".arrow"
    beside.mkdir(exist_ok=True)
    with ArrowWriter(path=str(beside / "rows.arrow"), features=features) as writer:
        for ids, mask in tokens:
            writer.write({"input_ids": ids, "loss_mask": mask, "seq_len": len(ids)})
        writer.finalize()
    rows = datasets.Dataset.from_file(str(beside / "rows.arrow")).with_format("torch")
    if len(rows) != count:
        raise DataError(f"{folder}: {len(rows)} of {count} rows were written. Run the same command again.")
    datasets.disable_progress_bars()
    rows.save_to_disk(str(beside / "saved"))
    for path in sorted((beside / "saved").iterdir(), key=lambda path: path.name == STATE):
        path.replace(folder / path.name)
    shutil.rmtree(beside)


def finished(folder: Path) -> set[str]:
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    return {STATE, "dataset_info.json", *(file["filename"] for file in state["_data_files"])}


FORMAT = Format(
    "speculators",
    "pre",
    ("pre",),
    open_folder,
    lambda i: f"{FOLDER}/hs_{i}.safetensors",
    load,
    save,
    finish=finish,
    finished=finished,
)
