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
        """The rows of a sequence in each state, `[L, H]` as stored; `scale.<state>` `[L]` where they have scales."""
        for path in sorted(self.work.parent.glob("*.partial")):
            with safe_open(path, "pt") as file:
                samples = file.get_tensor("sample_ids").tolist()
                if sample in samples:
                    offsets = file.get_tensor("offsets").tolist()
                    at = samples.index(sample)
                    names = [name for name in file.keys() if name.removeprefix("scale.") in self.states]  # noqa: SIM118
                    return {name: file.get_slice(name)[offsets[at] : offsets[at + 1]] for name in names}
        raise KeyError(sample)


def place(
    folder: Path,
    sequences: dict[int, list[int]],
    boundaries: list[int],
    hidden_size: int,
    shards: int,
    dtypes: tuple[str, ...] = ("bfloat16",),
) -> Placed:
    """Deals the sequences out to `shards` files in order, which take turns among `dtypes`."""
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
        dtype = dtypes[number % len(dtypes)]
        scales = {f"scale.{name}": torch.zeros(row) for name in states if dtype == "fp8_e4m3"}
        stored = torch.float8_e4m3fn if scales else torch.bfloat16
        tensors = {name: torch.zeros(row, hidden_size).to(stored) for name in states} | scales
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
        begins = {tensor: 8 + size + header[tensor]["data_offsets"][0] for tensor in tensors}
        plan.append(
            {
                "file": name,
                "tokens": row,
                "dtype": dtype,
                "state_offsets": {state: begins[state] for state in states},
                "scale_offsets": {state: begins[f"scale.{state}"] for state in states if scales},
            }
        )
    (work / "placement.json").write_text(
        json.dumps(
            {
                "format_version": 1,
                "nonce": NONCE,
                "hidden_size": hidden_size,
                "states": states,
                "shards": plan,
            }
        )
    )
    save_file({name: torch.tensor(values) for name, values in where.items()}, work / "placement.safetensors")
    return Placed(work, states, sequences)
