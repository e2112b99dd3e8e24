"""What `prepare` would have left of another project's conversations: tokens, loss masks, and who is held out."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from eagle3.config.schema import DatasetConfig
from eagle3.data.exchange.formats import Source
from eagle3.data.exchange.pace import Pace
from eagle3.data.placement import PROMPTS
from eagle3.data.prepare import save_prompts
from eagle3.data.split import held_out_sides
from eagle3.errors import DataError
from eagle3.files.json_file import write_json
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo


def read_tokens(source: Source, target: TargetInfo, out: Path, reporter: Reporter) -> None:
    """Writes prepare.json and then prompts.safetensors: whoever finds it goes on to the states.

    Raises DataError for token ids that the target does not have, or where nothing is left.
    """
    kept: list[tuple[int, np.ndarray, np.ndarray]] = []
    skipped: Counter[str] = Counter(missing=source.missing)
    pace = Pace(reporter, 0, len(source.files))
    for i, sample_id in enumerate(source.sample_ids):
        ids, mask = source.tokens(i)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size:
            raise DataError(
                f"{source.files[i]}: token id {ids.max()} is outside the {target.vocab_size:,} of "
                f"{target.path}. Give the model that it was made with as --target."
            )
        # The first token is never predicted, so a response token there teaches nothing.
        if mask[1:].any():
            kept.append((sample_id, ids, mask))
        else:
            skipped["no response token"] += 1
        pace.add(len(ids))
    if len(kept) < 2:
        raise DataError(f"{source.folder}: {len(kept)} sequences with something to learn; at least two are needed.")
    keys = [ids[: int(mask.argmax())].tobytes() for _, ids, mask in kept]
    held_out = held_out_sides(keys, DatasetConfig.held_out, DatasetConfig.seed)
    ids, masks = [ids for _, ids, _ in kept], [mask for _, _, mask in kept]
    lengths = np.array([len(i) for i in ids])
    summary: dict[str, Any] = {
        "format_version": 1,
        "source": str(source.folder.resolve()),
        "target": target.name,
        "regenerated": False,
        "counts": {
            "conversations": len(source.files) + source.missing,
            "kept": len(kept),
            "truncated": 0,
            "skipped": {reason: count for reason, count in skipped.items() if count},
        },
        "problems": [],
        "tokens": int(lengths.sum()),
        "response_tokens": int(sum(int(mask.sum()) for mask in masks)),
        "longest": int(lengths.max()),
        "held_out": {"sequences": int(held_out.sum()), "tokens": int(lengths[held_out != 0].sum())},
        "tokenizer_sha256": "",
        "template_sha256": "",
    }
    write_json(out / "prepare.json", summary)
    save_prompts(out / PROMPTS, ids, masks, [sample_id for sample_id, _, _ in kept], held_out)
