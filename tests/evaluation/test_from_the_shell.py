"""NCCL's variables that a server has from the shell: NCCL ignores a misspelt one without a word."""

import pytest

from eagle3.evaluation.bench import _from_the_shell
from eagle3.server.nccl import inherited


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NCCL_ALG", "x", "no NCCL variable is called so; did you mean NCCL_ALGO"),
        ("NCCL_ALGO", "x", "x is not one of Tree"),
    ],
)
def test_one_that_nccl_does_not_follow_is_called_so(name: str, value: str, says: str) -> None:
    assert says in _from_the_shell(name, value, [])
    assert _from_the_shell(name, value, [name]) == f"{name}={value}: comes from the shell"


def test_one_that_it_follows_is_only_named() -> None:
    assert _from_the_shell("NCCL_ALGO", "Ring", []) == "NCCL_ALGO=Ring: comes from the shell"


def test_what_a_container_image_says_of_its_package_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_VERSION", "2.28.3-1")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert "NCCL_VERSION" not in inherited({})
    assert inherited({})["NCCL_NVLS_ENABLE"] == "0"
