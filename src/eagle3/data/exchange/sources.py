"""Which files an import is of: each is known again by its name, its size and its time of change.

`sources.json` in the import's folder lists them as they were when it began; the ledger says of each imported sequence
which signs its file had. So a file that was taken away, made again or added since is noticed when the command is run
again, and a sample id stays that of its file.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.data.exchange.formats import Source
from eagle3.errors import DataError
from eagle3.files.json_file import write_json

NAME = "sources.json"
Signs = tuple[int, int]
"""(bytes, time of change in ns)."""


def signs_of(path: Path) -> Signs:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@dataclass
class Sources:
    """The files of a source, as they are now or as they were."""

    ids: dict[str, int]
    """File name, relative to the source's folder -> sample id."""
    signs: dict[int, Signs]
    """By sample id."""
    tables: dict[str, Signs] = field(default_factory=dict)
    """Files that hold something of all sequences."""

    @staticmethod
    def of(source: Source) -> "Sources":
        """Raises OSError for a file that vanished."""
        names = [path.relative_to(source.folder).as_posix() for path in source.files]
        return Sources(
            dict(zip(names, source.sample_ids, strict=True)),
            {i: signs_of(path) for i, path in zip(source.sample_ids, source.files, strict=True)},
            {path.relative_to(source.folder).as_posix(): signs_of(path) for path in source.tables},
        )

    def save(self, out: Path) -> None:
        files = {name: [i, *self.signs[i]] for name, i in self.ids.items()}
        write_json(out / NAME, {"files": files, "tables": {name: list(s) for name, s in self.tables.items()}})

    @staticmethod
    def load(out: Path) -> "Sources":
        """Raises DataError where it is missing or torn."""
        path = out / NAME
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            files = {str(name): (int(i), int(size), int(time)) for name, (i, size, time) in raw["files"].items()}
            tables = {str(name): (int(size), int(time)) for name, (size, time) in raw["tables"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} can't be read ({error}), so it is not known which files were imported. Remove {out} and "
                "import again."
            ) from None
        ids = {name: i for name, (i, _, _) in files.items()}
        return Sources(ids, {i: (size, time) for i, size, time in files.values()}, tables)


@dataclass(frozen=True)
class Since:
    """What has become of an import's files since it began."""

    file_of: dict[int, Path]
    """Sample id -> its file, of those that are there."""
    changed: dict[int, str]
    """Sample id -> name of a file that is another one than was imported."""
    gone: dict[int, str]
    """Sample id -> name of a file that was taken away."""

    @staticmethod
    def of(source: Source, begun: Sources, imported: dict[int, Signs], kept: Iterable[int]) -> "Since":
        """
        Args:
            begun: the files when the import began.
            imported: of sequences that were imported since, the signs of their file.
            kept: sample ids of which states are imported; what became of other files does not matter.

        Raises:
            DataError: files were added, or one that all sequences depend on has changed.
        """
        now = Sources.of(source)
        if added := sorted(now.ids.keys() - begun.ids.keys()):
            raise DataError(
                f"{source.folder}: {_listed(added)} not there when the import began. Take them away, or "
                "import into another folder."
            )
        if other := sorted(name for name, signs in begun.tables.items() if now.tables.get(name) != signs):
            raise DataError(
                f"{source.folder / other[0]} has changed since the import began. Import into another folder."
            )
        paths = dict(zip(now.ids, source.files, strict=True))
        known, wanted = begun.signs | imported, set(kept)
        ids = {name: i for name, i in begun.ids.items() if i in wanted}
        return Since(
            {i: paths[name] for name, i in ids.items() if name in paths},
            {i: name for name, i in ids.items() if name in paths and known[i] != now.signs[now.ids[name]]},
            {i: name for name, i in ids.items() if name not in paths},
        )

    def notes(self, unused: Iterable[int]) -> list[str]:
        """What to tell of it; `unused` are the sample ids that are left out, their files being gone."""
        told = []
        if self.changed:
            told.append(f"{_listed(self.changed.values())} changed since the import began and imported again")
        if names := [self.gone[i] for i in unused]:
            told.append(f"{_listed(names)} taken away since the import began: left out")
        return told


def imported_signs(ledger: Path) -> dict[int, Signs]:
    """Sample id -> the signs that its file had when it was imported last, from an import's ledger."""
    found: dict[int, Signs] = {}
    if not ledger.exists():
        return found
    for line in ledger.read_bytes().splitlines():
        try:
            raw: Any = json.loads(line)
            size, time = raw["source"]
            found[int(raw["id"])] = (int(size), int(time))
        except (ValueError, KeyError, TypeError):
            continue  # torn by a crash: its sequence does not count either
    return found


def _listed(names: Iterable[str]) -> str:
    """`3 files (a, b, ...) were`."""
    names = list(names)
    few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} file{'s' if len(names) > 1 else ''} ({few}) {'were' if len(names) > 1 else 'was'}"
