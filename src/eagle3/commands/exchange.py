"""`eagle3 export-data` and `eagle3 import-data`: hidden states in other projects' formats."""

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3.errors import EXIT_DONE, ConfigError
from eagle3.target.info import TargetInfo, read_info
from eagle3.tracking.console import ConsoleReporter


def run_export(args: argparse.Namespace) -> int:
    """Writes a dataset in another format, into a new folder or one that the same command was stopped in."""
    from eagle3.data.exchange.exporting import export_data
    from eagle3.data.exchange.table import FORMATS

    with _stage("export") as reporter:
        target = _target(args.target) if args.target else None
        form = FORMATS[args.format]
        count = export_data(args.dataset, args.out, form, reporter, args.boundaries, target, args.final)
    print(f"{args.out}: {count:,} sequences in the format {form.name}")
    return EXIT_DONE


def run_import(args: argparse.Namespace) -> int:
    """Makes a dataset of another project's, likewise."""
    from eagle3.data.exchange.importing import Import, import_data
    from eagle3.data.exchange.table import FORMATS

    with _stage("import") as reporter:
        if not args.folder.is_dir():
            raise ConfigError(f"{args.folder}: no such folder")
        job = Import(args.folder, FORMATS[args.format], args.boundaries, _target(args.target), args.final)
        manifest = import_data(args.folder, args.out, job, reporter)
    print(f"{args.out}: {manifest.sequences:,} sequences, {manifest.tokens:,} tokens")
    print(
        f"train on it with dataset.path={shlex.quote(str(args.out.resolve()))}, "
        f"check it with `eagle3 verify {shlex.quote(str(args.out))}`"
    )
    return EXIT_DONE


def _target(path: Path) -> TargetInfo:
    if not path.is_dir():
        raise ConfigError(f"--target {path}: no such folder; give the model's, with config.json and *.safetensors")
    return read_info(path)


@contextmanager
def _stage(name: str) -> Iterator[ConsoleReporter]:
    reporter = ConsoleReporter()
    try:
        with reporter.stage(name):
            yield reporter
    finally:
        reporter.close()
