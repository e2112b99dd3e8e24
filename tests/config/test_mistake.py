"""A typo in a sweep's command is told as one in a run's is: with choices on the command line, Hydra does not."""

import pytest
from hydra.errors import ConfigCompositionException

from eagle3 import config
from eagle3.config.explain import explain
from eagle3.config.mistake import sweep_mistake

SWEEPS = ["run.py", "--config-dir", str(config.PROJECT / "sweeps"), "--config-name", "nccl"]
GIVEN = ["target=local", "target.path=m", "target.name=m", "bench.round=0,1"]
TAKEN_FOR_A_RUN = ConfigCompositionException("Ambiguous value for argument 'bench.round=0,1'\n1. To use it as a list")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("optim.lrr=1", "optim.lrr: no such key; did you mean optim.lr?"),
        ("optim.lr=abc", "optim.lr: Value 'abc'"),
        ("server.dp_size=2", "A flag of SGLang's own is set with +server.flags.common.dp_size=..."),
        ("hydra/launcher=slrm", "Could not find 'hydra/launcher/slrm'"),
        ("nccl@nccl.serving=", "Available options in 'nccl'"),
        ("nccl.serving.env.NCCL_ALGO=Ring", "or ++nccl.serving.env.NCCL_ALGO=... where some choices"),
        ("name=é", "name=é: the value has a character that Hydra reads as its own; quote it twice: 'name=\"é\"'"),
        ("layers.boundaries=[1,2", "see that quotes and brackets are closed"),
        ("snapshot=replai", "snapshot"),
        ("name", "name: not an override; write KEY=VALUE"),
    ],
)
def test_what_is_wrong_with_a_sweeps_command_is_said(override: str, says: str) -> None:
    config.register()
    told = explain(sweep_mistake(TAKEN_FOR_A_RUN, [*SWEEPS, *GIVEN, override]))
    assert says in told
    assert "Ambiguous" not in told


def test_a_choice_in_a_run_is_told_as_hydra_does() -> None:
    config.register()
    asked = ["run.py", "experiment=quickstart", "optim.lr=1,2"]
    assert sweep_mistake(TAKEN_FOR_A_RUN, asked) is TAKEN_FOR_A_RUN
    other = ConfigCompositionException("Could not find 'target/x'")
    assert sweep_mistake(other, asked) is other


def test_a_value_that_is_taken_for_an_option_of_its_group() -> None:
    said = explain(
        ConfigCompositionException("In 'config': Could not find 'loss/kl'\nAvailable options in 'loss':\n\tce")
    )
    assert "loss.kind=ce, kl or lk" in said
