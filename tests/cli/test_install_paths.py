"""The first two commands of a newcomer, where the folder's name has a space or the environment is not the project's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from eagle3.config import PROJECT


def test_make_works_in_a_folder_whose_name_has_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a b é"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(PROJECT / "Makefile", folder)
    (folder / "scripts" / "install.sh").write_text('echo "$0"\n')  # stands for the real one, which installs 10 GB
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for command in (["make", "-C", str(folder)], ["make", "-f", str(folder / "Makefile")]):

        def said(*words: str, command: list[str] = command) -> str:
            done = subprocess.run([*command, *words], capture_output=True, text=True, cwd=tmp_path, env=env, check=True)
            return done.stdout

        assert f"{folder}/scripts/install.sh\n" in said("install")
        assert "make quickstart " in said("help")
        assert f'"{folder}/.venv/bin"/python "{folder}/run.py" experiment=quickstart' in said("-n", "quickstart")


def test_a_python_without_the_packages_is_named_with_what_to_do() -> None:
    command = [sys.executable, "-I", "-S", PROJECT / "run.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"{sys.executable} has no module hydra: run `make install` in {PROJECT}" in done.stderr
