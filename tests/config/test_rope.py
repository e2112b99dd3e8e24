"""`drafter.rope_scaling` from the command line and from YAML: what is meant is taken, what is wrong is named."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from tests.pipeline.imported_runs import run

from eagle3 import config
from eagle3.config.rope import check_rope
from eagle3.config.schema import RopeScaling
from eagle3.config.snapshot import resolved_yaml
from eagle3.drafter.rope import inverse_frequencies
from eagle3.errors import ConfigError

YARN = "type: yarn, factor: 4, original_max_position: 2048"


@pytest.fixture
def _hydra() -> Iterator[None]:
    config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config.PROJECT / "conf"), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def given(*overrides: str) -> RopeScaling | None:
    found = config.load(compose("config", ["experiment=quickstart", *overrides])).drafter.rope_scaling
    assert found is None or isinstance(found, RopeScaling)
    return found


@pytest.mark.usefixtures("_hydra")
def test_it_is_given_whole_on_the_command_line() -> None:
    assert given() is None
    assert given("drafter.rope_scaling={type: linear, factor: 2}") == RopeScaling("linear", 2)
    assert given(f"+drafter.rope_scaling={{{YARN}}}") == RopeScaling("yarn", 4, 2048)
    assert given("+drafter.rope_scaling.type=linear", "+drafter.rope_scaling.factor=2") == RopeScaling("linear", 2)
    assert given(f"drafter.rope_scaling={{{YARN}}}", "drafter.rope_scaling=null") is None


@pytest.mark.usefixtures("_hydra")
def test_a_saved_configuration_has_it() -> None:
    composed = compose("config", ["experiment=quickstart", f"drafter.rope_scaling={{{YARN}, beta_fast: 16}}"])
    again = config.load(OmegaConf.to_container(OmegaConf.create(resolved_yaml(composed))))  # type: ignore[arg-type]
    assert again.drafter.rope_scaling == RopeScaling("yarn", 4, 2048, beta_fast=16)


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("linear", "drafter.rope_scaling: 'linear' is not a mapping"),
        (
            "{rope_type: linear, factor: 2}",
            "rope_scaling.rope_type: no such key; did you mean drafter.rope_scaling.type",
        ),
        ("{type: yarn, factor: 2, original_max_position_embeddings: 64}", "did you mean .*original_max_position?"),
        ("{type: linear, factr: 2}", "factr: no such key; did you mean drafter.rope_scaling.factor?"),
        ("{factor: 2}", "rope_scaling.type: not set"),
        ("{type: linear}", "rope_scaling.factor: not set"),
        ("{type: linear, factor: two}", "factor: 'two' is not a number"),
        ("{type: yarn, factor: 2, original_max_position: 64.5}", "64.5 is not a whole number"),
        ("{type: dynamic, factor: 2}", "'dynamic': must be linear, llama3 or yarn"),
        ("{type: llama3, factor: 8}", "original_max_position: not set, and llama3 needs it"),
        ("{type: linear, factor: 2, original_max_position: 5}", "linear scaling has none"),
        ("{type: linear, factor: 0.5}", "factor=0.5: must be at least 1"),
        ("{type: linear, factor: inf}", "is not a number to work with"),
        (f"{{{YARN}, original_max_position: 0}}", "original_max_position: 0 is too small"),
        (
            "{type: llama3, factor: 8, original_max_position: 64, low_freq_factor: 8, high_freq_factor: 1}",
            "low_freq_factor=8: must be below drafter.rope_scaling.high_freq_factor=1",
        ),
        (f"{{{YARN}, beta_fast: 1, beta_slow: 32}}", "beta_slow=32: must be below drafter.rope_scaling.beta_fast=1"),
    ],
)
def test_what_is_wrong_is_named(value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        given(f"drafter.rope_scaling={value}")


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("drafter.rope_theta=1", "rope_theta=1.0: must be above 1"),
        ("seed=99999999999999999999", "seed: 99999999999999999999 is too large"),
        ("trainer.max_steps=99999999999999999999", "max_steps: 99999999999999999999 is too large"),
    ],
)
def test_numbers_that_only_fail_in_training_are_refused_before(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        given(override)


@pytest.mark.parametrize("theta", [1.001, 2.0, 10000.0, 1e9])
@pytest.mark.parametrize("scaling", [RopeScaling("linear", 1), RopeScaling("llama3", 8, 1), RopeScaling("yarn", 40, 1)])
def test_what_is_let_through_can_be_computed(theta: float, scaling: RopeScaling) -> None:
    check_rope(theta, scaling)
    found = inverse_frequencies(64, theta, scaling)
    assert torch.isfinite(found).all()
    assert math.isfinite(float(found.sum()))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["drafter.rope_scaling.type=linear"], "error: drafter.rope_scaling.type: not in the composed configuration"),
        (["target=local", "target.shape.hidden_size=4"], "error: target.shape.hidden_size=4: target.shape is null"),
        (
            ["target=local", "target.shape={hidden_size: 4}"],
            "error: target.shape={hidden_size: 4}: target.shape is null",
        ),
    ],
)
def test_a_part_of_what_is_null_has_no_traceback(tmp_path: Path, overrides: list[str], says: str) -> None:
    code, output = run(["dataset=quickstart", *overrides, f"paths.runs={tmp_path}"], tmp_path)
    assert code == 2, output
    assert output.startswith(says)
