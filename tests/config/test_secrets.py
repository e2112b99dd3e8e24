"""No secret reaches a snapshot, a log or W&B."""

import pytest
from omegaconf import OmegaConf

from eagle3.config.secrets import check_secrets, looks_secret, redact
from eagle3.errors import ConfigError


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "api_key", "server.password", "AWS_SECRET_ACCESS_KEY"])
def test_secret_names(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["max_new_tokens", "tokens_per_batch", "tokenizer", "monkey", "keyboard", "skip_tokenizer_init"]
)
def test_ordinary_names(name: str) -> None:
    assert not looks_secret(name)


def test_a_secret_read_from_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    with pytest.raises(ConfigError, match=r"server\.env\.X: reads the secret HF_TOKEN"):
        check_secrets(OmegaConf.create({"server": {"env": {"X": "${oc.env:HF_TOKEN}"}}}))


def test_a_secret_pasted_into_a_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    with pytest.raises(ConfigError, match=r"tracking\.tags"):
        check_secrets(OmegaConf.create({"tracking": {"tags": ["x hf_abcdefghijkl"]}}))


def test_a_key_named_like_a_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="api_key: looks like a secret"):
        check_secrets(OmegaConf.create({"server": {"flags": {"common": {"api_key": "abc"}}}}))


def test_redact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert redact("login 0123456789abcdef now") == "login <WANDB_API_KEY> now"


def test_a_value_of_a_secrets_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.project: looks like a secret"):
        check_secrets(OmegaConf.create({"tracking": {"project": "hf_" + "aB3" * 12}}))


@pytest.mark.parametrize(
    "value",
    [
        "hf_" + "aB3" * 12,
        "0123456789abcdef0123456789abcdef01234567",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "https://user:swordfish@example.org/x",
    ],
    ids=["a hub's token", "40 hexadecimal digits", "random letters", "a password in an address"],
)
def test_a_value_of_the_environment_that_looks_like_a_secret_is_refused_whatever_its_name(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARMLESS", value)
    with pytest.raises(ConfigError, match=r"server\.env\.X: reads the secret HARMLESS from the environment"):
        check_secrets(OmegaConf.create({"server": {"env": {"X": "${oc.env:HARMLESS}"}}}))


@pytest.mark.parametrize("value", ["/scratch/job-12345/tmp", "experiment-2026-11-30-nightly", "node0:29500", "4096"])
def test_ordinary_values_of_the_environment_are_taken(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMLESS", value)
    check_secrets(OmegaConf.create({"server": {"env": {"X": "${oc.env:HARMLESS}"}}}))


def test_a_secret_put_together_by_interpolation_is_refused() -> None:
    parts = {"a": "hf_aB3aB3aB3aB3aB3aB3", "b": "aB3aB3aB3aB3aB3aB3"}
    cfg = OmegaConf.create({**parts, "tracking": {"project": "${a}${b}"}})
    with pytest.raises(ConfigError, match=r"tracking\.project: looks like a secret"):
        check_secrets(cfg)


def test_known_tokens_are_taken_out_of_a_diff() -> None:
    assert redact("+token = hf_" + "aB3" * 12) == "+token = <secret>"
    assert redact("https://user:swordfish@example.org") == "https://<secret>@example.org"
