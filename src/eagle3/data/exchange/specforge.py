"""SpecForge's offline format: one `.ckpt` a sequence, 5,000 to a folder.

`aux_hidden_state` has the captured states side by side; `hidden_state` is from after the final norm, and SpecForge's
trainer multiplies it with the output head as it is.
"""

from pathlib import Path

import torch

from eagle3.data.exchange.formats import Format, Source, Stored, require_shapes
from eagle3.data.exchange.torch_files import load_dict, require_intact, source
from eagle3.errors import DataError

KEYS = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
GROUP = 5000


def load(path: Path) -> Stored:
    found = load_dict(path, KEYS)
    final, aux = found["hidden_state"], found["aux_hidden_state"]
    H = final.shape[-1] if final.dim() == 3 else 0
    if not H or aux.dim() != 3 or final.shape[0] != 1 or aux.shape[0] != 1 or aux.shape[-1] % H:
        raise DataError(
            f"{path}: hidden_state {list(final.shape)} and aux_hidden_state {list(aux.shape)} should be [1, S, H] and "
            "[1, S, K*H]."
        )
    columns = [*aux[0].split(H, dim=-1), final[0]]
    return require_shapes(path, Stored(found["input_ids"], found["loss_mask"], columns))


def save(path: Path, stored: Stored) -> None:
    final, aux = stored.columns[-1].clone()[None], torch.cat(stored.columns[:-1], dim=-1)[None]
    torch.save(dict(zip(KEYS, (stored.input_ids, stored.loss_mask, final, aux), strict=True)), path)


def open_folder(folder: Path) -> Source:
    files = list(folder.rglob("*.ckpt"))
    if not files:
        packed = any(folder.rglob("*.ckpt.gz"))
        raise DataError(f"{folder}: no .ckpt files there." + (" Unpack them with `gunzip -r` first." if packed else ""))
    return source(folder, files, load)


def file_of(i: int) -> str:
    first = i // GROUP * GROUP
    return f"rows_{first}-{first + GROUP}/data_{i}.ckpt"


FORMAT = Format("specforge", "post", ("post",), open_folder, file_of, load, save, require_intact)
