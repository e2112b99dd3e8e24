"""The least that the plugin needs of a dataset folder: a placement and shard skeletons, written in a few lines."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

NONCE = "00c0ffee"


@dataclass
class Placed:
    work: Path
    states: list[str]
    sequences: dict[int, list[int]]
    """Sample id to token ids."""

    def rid(self, sample: int) -> str:
        return f"eagle3-{NONCE}-{sample}"

    def ledger(self) -> dict[int, dict]:
        rows = {}
        for path in self.work.glob("ledger-*.jsonl"):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                rows[row["id"]] = row
        return rows

    def read(self, sample: int) -> dict[str, torch.Tensor]:
        """The rows of a sequence in each state, `[L, H]`."""
        for path in sorted(self.work.parent.glob("*.partial")):
            with safe_open(path, "pt") as file:
                samples = file.get_tensor("sample_ids").tolist()
                if sample in samples:
                    offsets = file.get_tensor("offsets").tolist()
                    at = samples.index(sample)
                    return {name: file.get_slice(name)[offsets[at] : offsets[at + 1]] for name in self.states}
        raise KeyError(sample)


def place(
    folder: Path, sequences: dict[int, list[int]], boundaries: list[int], hidden_size: int, shards: int
) -> Placed:
    """Deals the sequences out to `shards` files in order."""
    work = folder / "work"
    work.mkdir(parents=True)
    states = [*(f"boundary.{boundary}" for boundary in boundaries), "final"]
    samples = list(sequences)
    per_shard = -(-len(samples) // shards)
    plan, where = [], {"sample_ids": [], "shard": [], "row": [], "length": []}
    for number in range(shards):
        part = samples[number * per_shard : (number + 1) * per_shard]
        row = 0
        offsets = [0]
        for sample in part:
            for name, value in zip(where, (sample, number, row, len(sequences[sample])), strict=True):
                where[name].append(value)
            row += len(sequences[sample])
            offsets.append(row)
        tensors = {name: torch.zeros(row, hidden_size, dtype=torch.bfloat16) for name in states}
        tensors["input_ids"] = torch.tensor(
            [token for sample in part for token in sequences[sample]], dtype=torch.int32
        )
        tensors["offsets"] = torch.tensor(offsets)
        tensors["sample_ids"] = torch.tensor(part)
        name = f"shard-{number:05d}.safetensors"
        path = folder / f"{name}.partial"
        save_file(tensors, path)
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        plan.append(
            {
                "file": name,
                "tokens": row,
                "state_offsets": {state: 8 + size + header[state]["data_offsets"][0] for state in states},
            }
        )
    (work / "placement.json").write_text(
        json.dumps(
            {
                "format_version": 1,
                "nonce": NONCE,
                "hidden_size": hidden_size,
                "dtype": "bfloat16",
                "states": states,
                "shards": plan,
            }
        )
    )
    save_file({name: torch.tensor(values) for name, values in where.items()}, work / "placement.safetensors")
    return Placed(work, states, sequences)
