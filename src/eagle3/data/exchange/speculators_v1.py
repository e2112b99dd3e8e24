"""speculators' first format, of its versions up to 0.4: one `data_<i>.pt` a sequence, all states in a list.

Its generator stored the output of the last layer, so the last state is from before the final norm. Trainers from 0.4 on
norm it; 0.3 and older do not, and take it for one after the norm.
"""

from pathlib import Path

import torch

from eagle3.data.exchange.formats import Format, Source, Stored, require_shapes
from eagle3.data.exchange.torch_files import load_dict, require_intact, source
from eagle3.errors import DataError

KEYS = ("input_ids", "hidden_states", "loss_mask")


def load(path: Path) -> Stored:
    found = load_dict(path, KEYS)
    states = found["hidden_states"]
    if not (isinstance(states, list | tuple) and all(isinstance(s, torch.Tensor) for s in states)):
        raise DataError(f"{path}: hidden_states is not a list of tensors, one a layer. Is --format right?")
    return require_shapes(path, Stored(found["input_ids"], found["loss_mask"], list(states)))


def save(path: Path, stored: Stored) -> None:
    values = (stored.input_ids, [column.clone() for column in stored.columns], stored.loss_mask)
    torch.save(dict(zip(KEYS, values, strict=True)), path)


def open_folder(folder: Path) -> Source:
    files = [path for path in folder.rglob("*.pt") if path.name != "token_freq.pt"]
    if not files:
        raise DataError(f"{folder}: no data_<i>.pt there, as speculators up to 0.4 wrote them.")
    return source(folder, files, load)


FORMAT = Format(
    "speculators-v1", "pre", ("pre", "post"), open_folder, lambda i: f"data_{i}.pt", load, save, require_intact
)
