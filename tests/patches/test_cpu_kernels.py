"""What is in front of SGLang on a CPU: the stand-in for its compiled kernels, and what makes a start cheaper."""

import gc
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from eagle3.server.flags import OUR_PLUGINS

FOLDER = Path(__file__).resolve().parents[2] / "patches" / "cpu_kernels"


def python(code: str, *folders: Path) -> str:
    """What it prints in a process that is started as a server's are."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (FOLDER, *folders)))}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_any_kernel_can_be_imported_and_none_called():
    spec = importlib.util.spec_from_file_location("sgl_kernel_stand_in", FOLDER / "sgl_kernel" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(NotImplementedError, match="assign_req_to_token_pool_cpu"):
        module.assign_req_to_token_pool_cpu()
    with pytest.raises(AttributeError):
        module.__no_such_dunder__  # noqa: B018


def test_plugins_are_named_where_only_named_ones_are_loaded():
    folders = [str(folder) for folder in FOLDER.parent.iterdir()]
    found = [point.name for one in distributions(path=folders) for point in one.entry_points]
    assert sorted(found) == sorted(OUR_PLUGINS)


def test_flashinfer_is_as_if_not_installed():
    code = "try:\n    from flashinfer import fp4_quantize\nexcept ImportError as error:\n    print(error)"
    assert "hides it from a server on the CPU" in python(code)


@pytest.mark.parametrize(
    "collects", ["gc.collect()", "kept = [[] for _ in range(4_000_000)]"], ids=["asked-for", "by-itself"]
)
def test_garbage_is_collected_as_usual_from_the_first_time_on(collects: str):
    code = f"import gc; print(gc.get_threshold()[0]); {collects}; print(gc.get_threshold(), gc.isenabled())"
    assert python(code).splitlines() == ["3000000", f"{gc.get_threshold()} True"]


def test_a_sitecustomize_of_the_environment_is_run_too(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import gc; gc.theirs = gc.get_threshold()[0]")
    assert python("import gc; print(gc.theirs)", tmp_path).strip() == "3000000"
