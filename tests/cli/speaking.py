"""A command of `eagle3` in this process, and what it printed."""

import pytest

from eagle3.cli import main


def spoken(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err
