"""The `eagle3` command: looks at a machine and at what runs leave behind. Experiments are started by run.py."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eagle3 import __version__
from eagle3.errors import EXIT_BAD_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, Eagle3Error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eagle3",
        description="Looks at this machine, and at what runs leave behind. Experiments are started by "
        "`python run.py experiment=...`.",
        epilog="Exit codes: 0 all is well, 1 a check failed, 2 wrong usage or no such path, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"eagle3 {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    doctor = commands.add_parser(
        "doctor",
        help="check this machine, and say what to do",
        description="Checks Python, packages, SGLang and the dump plugin's fit, GPU and CUDA, memory, disk, ports, W&B "
        "login and the model hub. Starts nothing and changes nothing. Exit 1 if something is broken.",
    )
    doctor.add_argument("--artifacts", type=Path, metavar="FOLDER", help="where `paths.artifacts` will be")
    doctor.add_argument("--cache", type=Path, metavar="FOLDER", help="where `paths.cache` will be")

    doctor.add_argument("--server-python", metavar="FILE", help="the interpreter in `server.python`, if not this one")

    inspect = commands.add_parser(
        "inspect",
        help="explain a run, dataset, drafter or other folder",
        description="Says what a folder is, how it was made, its figures, and what can be done with it next: a run, a "
        "dataset of hidden states or an export of one, prepared prompts, a training or an evaluation, a drafter, a "
        "checkpoint, a W&B run; "
        "and the command that makes it again.",
    )
    inspect.add_argument("path", type=Path, metavar="PATH")
    inspect.add_argument(
        "--snapshot", type=Path, metavar="FOLDER", help="of a checkpoint: write what made it there, to be repeated"
    )

    verify = commands.add_parser(
        "verify",
        help="re-check every byte of a dataset or a drafter",
        description="A dataset: checksums, coverage, boundaries and finiteness of every sequence. An export of one: "
        "that each file is there and whole; it says what an export can't tell. A drafter: names, "
        "shapes and configuration, as SGLang will read them. A run: its dataset and its drafter. Exit 1 with the "
        "first fault named.",
    )
    verify.add_argument("path", type=Path, metavar="PATH")
    verify.add_argument("--all", action="store_true", help="go on after the first fault and name them all")
    verify.add_argument("--target", type=Path, metavar="FOLDER", help="the model that it was made with, or is for")
    _add_reading(verify)
    _add_export(commands)
    _add_exchange(commands)
    _add_compare(commands)
    return parser


def _add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    compare = commands.add_parser(
        "compare",
        help="runs and sweeps beside each other: one table, and the best",
        description="One row for each configuration, its seeds together: what differs, accept length by draft token "
        "with its spread, rates, cost; the best one, and whether its lead is more than noise. From run folders alone.",
    )
    compare.add_argument("paths", type=Path, nargs="+", metavar="RUN_OR_SWEEP")
    compare.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="also !=, <, <=, >, >=")
    compare.add_argument("--sort", metavar="KEY", help="a figure or a key of the configuration (accept_length)")
    compare.add_argument("--reverse", action="store_true", help="worst first")
    compare.add_argument(
        "--out", type=Path, action="append", default=[], metavar="FILE", help="write it too: .html, .md or .csv"
    )


def _add_reading(command: argparse.ArgumentParser) -> None:
    command.add_argument("--boundaries", type=_boundaries, metavar="2,15,27", help="what a drafter was trained on")
    command.add_argument("--sglang-version", metavar="V", help="the SGLang that will serve it, e.g. 0.5.23")


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    export = commands.add_parser(
        "export",
        help="write a drafter for a named SGLang version, or for vLLM",
        description="Writes a drafter's folder with a model card: for SGLang, with capture ids that mean the trained "
        "boundaries in the named version, or in speculators' layout, which vLLM serves. Every key and shape is "
        "checked before and after. See docs/serving.md.",
    )
    export.add_argument("path", type=Path, metavar="PATH", help="a run, a training, or a drafter's folder")
    export.add_argument(
        "out", type=Path, nargs="?", metavar="OUT", help="the new folder; by default beside the drafter"
    )
    export.add_argument("--format", required=True, choices=("sglang", "speculators"))
    export.add_argument("--target", type=Path, metavar="FOLDER", help="the model that the drafter is for")
    export.add_argument(
        "--verifier", metavar="NAME", help="what the target is called where it is served, e.g. a hub id"
    )
    _add_reading(export)


def _add_exchange(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    export = commands.add_parser(
        "export-data",
        help="write a dataset of hidden states in another project's format",
        description="Writes a complete dataset as speculators (0.5 on), speculators up to 0.4, or SpecForge read it: "
        "one file a sequence. The same command continues what was stopped. See docs/formats.md.",
    )
    export.add_argument("dataset", type=Path, metavar="DATASET")
    export.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    export.add_argument("--boundaries", type=_boundaries, metavar="2,15,27", help="which to write; all if left away")

    import_ = commands.add_parser(
        "import-data",
        help="make a dataset of another project's hidden states",
        description="Makes a dataset that training reads, with its prompts, of hidden states that speculators or "
        "SpecForge stored. The same command continues what was stopped. See docs/formats.md.",
    )
    import_.add_argument("folder", type=Path, metavar="FOLDER")
    import_.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    import_.add_argument(
        "--boundaries",
        type=_boundaries,
        metavar="2,15,27",
        required=True,
        help="of the stored states in their order, the last one left out; boundary b is the output of layer b-1",
    )
    for command in (export, import_):
        command.add_argument("--format", required=True, choices=("speculators", "speculators-v1", "specforge"))
        command.add_argument(
            "--target",
            type=Path,
            metavar="FOLDER",
            required=command is import_,
            help="the model that the states were made with",
        )
        command.add_argument(
            "--final",
            choices=("pre", "post"),
            help="the last state is from before or after the target's final norm, if not as the format has it",
        )


def _boundaries(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give layers as numbers with commas, such as 2,15,27") from None


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    args, left = parser.parse_known_args(argv)
    if left and args.command == "export" and args.out is None and not left[0].startswith("-"):
        args.out = Path(left.pop(0))  # after options, where argparse does not look for it
    if left:
        parser.error(f"{args.command}: no such arguments: {' '.join(left)}; see eagle3 {args.command} --help")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = _parsed(argv)
    try:
        if args.command == "doctor":
            from eagle3.commands.doctor import run_doctor

            return run_doctor(args.artifacts, args.cache, args.server_python)
        if args.command == "inspect":
            from eagle3.commands.inspect import run_inspect

            return run_inspect(args.path, args.snapshot)
        if args.command in ("export-data", "import-data"):
            from eagle3.commands.exchange import run_export, run_import

            return run_export(args) if args.command == "export-data" else run_import(args)
        if args.command == "export":
            from eagle3.commands.export import run_export_drafter

            given = (args.format, args.sglang_version, args.target, args.boundaries, args.verifier)
            return run_export_drafter(args.path, args.out, *given)
        if args.command == "compare":
            from eagle3.commands.compare import run_compare

            return run_compare(args.paths, args.where, args.sort, args.reverse, args.out)
        from eagle3.commands.verify import run_verify

        return run_verify(args.path, args.all, args.target, args.boundaries, args.sglang_version)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Eagle3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `eagle3 inspect ... | head`
        sys.stderr.close()
        return EXIT_BAD_CONFIG
    except OSError as error:
        if error.filename is None:
            raise
        remedy = ". Let this user read it, or run as one who may" if isinstance(error, PermissionError) else ""
        print(f"error: {error.filename}: {error.strerror}{remedy}", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
