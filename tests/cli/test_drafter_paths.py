"""Where a drafter of others may lie, and what is said where it, its target, or what was typed can't be."""

import shlex
import shutil
from pathlib import Path

import pytest
from tests.cli.speaking import spoken

from eagle3.cli import main
from eagle3.target.info import TargetInfo


@pytest.mark.parametrize("name", ["with space", "ünï✓", "quote'q", "-dash", "a\nb", "a[b]*?"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_path_of_any_kind(
    tmp_path: Path,
    theirs: Path,
    target: TargetInfo,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    linked: bool,
) -> None:
    """Also relative to where one is, and a link."""
    monkeypatch.chdir(tmp_path)
    if linked:
        (tmp_path / name).symlink_to(theirs)
    else:
        shutil.copytree(theirs, tmp_path / name)
    given = ("--target", "target", "--", name)
    assert spoken(capsys, "verify", *given) == (0, f"{name}: an EAGLE-3 drafter, nothing wrong\n", "")
    code, out, err = spoken(capsys, "export", "--format", "sglang", *given, f"{name}/out")
    assert code == 0, err
    served = shlex.split(out.partition("checked\n")[2].replace("\\\n", ""))
    assert served[served.index("--speculative-draft-model-path") + 1] == f"{name}/out"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("{theirs}", "--target", "{theirs}"), "is a drafter; give the folder of the model that it is for"),
        (("{theirs}", "--target", "gone"), "--target gone: no such folder"),
        (("{theirs}", "--target", "{theirs}/config.json"), "no such folder"),
        (("{theirs}", "--target", "{tmp}"), "no config.json there"),
        (("{theirs}",), "Add --target FOLDER"),
        (("x" * 300,), "File name too long"),
    ],
)
def test_words_that_are_wrong(
    tmp_path: Path, theirs: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], says: str
) -> None:
    words = [word.format(theirs=theirs, tmp=tmp_path) for word in given]
    for command in (("verify",), ("export", "--format", "sglang")):
        code, _, err = spoken(capsys, *command, *words)
        assert code in (1, 2)
        assert err.startswith("error: ")
        assert says in err
        assert len(err.splitlines()) == 1


def test_boundaries_that_are_no_numbers(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("a", "2,,3", "2.5", ""):
        with pytest.raises(SystemExit):
            main(["verify", str(theirs), "--boundaries", given])
        assert f"{given!r}: give layers as numbers with commas, such as 2,15,27" in capsys.readouterr().err


def test_what_this_user_may_not_read(
    theirs: Path, target: TargetInfo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs tests may be root, who may read all: so it is said to be forbidden."""

    def forbidden(path: Path | str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("eagle3.drafter.folder.Path.iterdir", forbidden)
    code, out, err = spoken(capsys, "verify", theirs, "--target", target.path)
    assert (code, out, err) == (1, f"{theirs}: can't be listed (Permission denied)\n", "")
    monkeypatch.setattr("eagle3.commands.verify.kind_of", forbidden)
    code, _, err = spoken(capsys, "verify", theirs)
    assert (code, err) == (1, f"error: {theirs}: Permission denied. Let this user read it, or run as one who may\n")
