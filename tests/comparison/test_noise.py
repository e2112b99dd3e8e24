"""Is a difference noise: on drafters whose true acceptance is known, because they are drawn with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evaluation.recorded_loads import loads

from eagle3.comparison import headline
from eagle3.comparison.figures import BENCH
from eagle3.comparison.grouping import differing, variants_of
from eagle3.comparison.noise import Verdict, bootstrap_spread, by_seeds, by_sequences
from eagle3.comparison.runs import Run
from eagle3.comparison.table import compare_runs
from eagle3.comparison.variants import judge
from eagle3.evaluation.figures import cells_of, summary_of
from eagle3.evaluation.sequences import Sequences, accept_length


def drawn(shares: list[float], seed: int, count: int = 60, positions: int = 40) -> Sequences:
    """Sequences whose positions are accepted with these chances, each by chance."""
    random = np.random.default_rng(seed)
    reached, accepted, left = [], [], np.full(count, positions)
    for share in shares:
        reached.append(left)
        left = random.binomial(left, share)
        accepted.append(left)
    return Sequences(np.arange(count), np.stack(reached, 1), np.stack(accepted, 1))


def made(config: dict[str, Any], shares: list[float], seed: int = 0, sequences: bool = True, data: str = "d") -> Run:
    found = drawn(shares, seed)
    conditional = found.accepted.sum(0) / found.reached.sum(0)
    summary = {f"eval/cond_acc_step_{k}": float(share) for k, share in enumerate(conditional)}
    summary["eval/accept_length"] = float(accept_length(conditional))
    provenance = {"dataset": {"fingerprint": data}, "target": {"fingerprint": "t"}}
    config = {"seed": seed, "dataset.name": data, **config}
    return Run(Path(f"run-{config}"), config, summary, provenance, found if sequences else None)


def test_the_bootstraps_spread_is_that_of_many_draws() -> None:
    lengths = [
        float(accept_length(one.accepted.sum(0) / one.reached.sum(0)))
        for one in (drawn([0.5, 0.4], seed) for seed in range(400))
    ]
    assert bootstrap_spread(drawn([0.5, 0.4], 1000)).accept_length == pytest.approx(np.std(lengths), rel=0.25)


def test_equal_drafters_are_rarely_called_different() -> None:
    called = sum(by_sequences(drawn([0.5, 0.4], i), drawn([0.5, 0.4], 500 + i)).exceeds for i in range(100))
    assert called <= 12, "95% intervals, so about 5 of 100"


def test_a_real_difference_is_seen_and_signed() -> None:
    verdict = by_sequences(drawn([0.6, 0.5], 1), drawn([0.5, 0.4], 2))
    assert verdict.exceeds
    assert verdict.low < verdict.difference < verdict.high
    assert verdict.difference == pytest.approx(0.2, abs=0.06)
    assert by_sequences(drawn([0.5, 0.4], 2), drawn([0.6, 0.5], 1)).difference == -verdict.difference


def test_seeds_by_welch() -> None:
    """Two variances of 0.0004 over three seeds: 4 degrees of freedom, t = 2.776, so 0.1 +- 2.776 x 0.01633."""
    verdict = by_seeds([1.50, 1.54, 1.52], [1.40, 1.44, 1.42])
    assert (verdict.low, verdict.high) == pytest.approx((0.0547, 0.1453), abs=2e-3)
    assert not by_seeds([1.50, 1.30], [1.40, 1.35]).exceeds
    without_noise = by_seeds([1.5, 1.5], [1.4, 1.4])
    assert without_noise.exceeds
    assert without_noise.low == pytest.approx(without_noise.high) == pytest.approx(0.1)


def test_what_is_not_known_is_said() -> None:
    a, b = variants_of([made({"x": 1}, [0.5], sequences=False), made({"x": 2}, [0.5], sequences=False)])
    assert "add seeds" in str(judge(a, b))
    single = made({"x": 1}, [0.5])
    assert single.sequences is not None
    one = replace(single, sequences=Sequences(*(array[:1] for array in vars(single.sequences).values())))
    (variant,) = variants_of([one])
    assert variant.spread is None, "one conversation tells nothing of others"


def test_seeds_are_put_together_and_a_repeated_run_counts_once() -> None:
    runs = [made({"x": 1}, [0.5], 0), made({"x": 1}, [0.5], 1), made({"x": 1}, [0.5], 1), made({"x": 2}, [0.3], 0)]
    found = compare_runs(runs)
    assert [variant.setting for variant in found.variants] == [{"x": "1"}, {"x": "2"}]
    assert [len(variant.distinct) for variant in found.variants] == [2, 1]
    assert found.variants[0].spread is not None
    assert found.variants[0].spread.source == "2 seeds"
    verdict = found.groups[0].verdict(found.variants[1])
    assert isinstance(verdict, Verdict)
    assert "bootstrap" in verdict.source


def test_keys_that_differ() -> None:
    configs = [{"seed": 0, "optim.lr": 1e-3, "new.key": 1}, {"seed": 1, "optim.lr": 2e-3}]
    assert differing(configs) == ["optim.lr"], "seeds, and keys that only some runs have tell nothing"
    variants = variants_of([made({"a.size": 1, "b.size": 1}, [0.5]), made({"a.size": 2, "b.size": 2}, [0.5])])
    assert variants[0].setting == {"a.size": "1", "b.size": "1"}
    variants = variants_of([made({"dataset.limit": 1}, [0.5], data=d) for d in "de"])
    assert list(variants[0].setting) == ["dataset"]


def test_a_served_evaluation_is_compared_by_the_names_that_it_writes() -> None:
    served = [made({"optim.lr": lr}, [0.5]) for lr in (1, 2)]
    for run, speed_up in zip(served, (1.5, 1.25), strict=True):
        run.summary.update(summary_of(cells_of(loads([speed_up] * 3))))
    found = compare_runs(served)
    (group,) = found.groups
    keys = [column.key for column in group.columns]
    assert [column.value(found.variants[0]) for column in group.columns if column.key == "speedup"] == [1.5]
    assert "served_tokens_per_s" in keys
    said = headline(found)
    assert "(served, 3 drafted tokens)" in said[0]
    assert "Served speed-up: lr=1 1.50x, highest; the spread of single seeds is not known." in said


def test_an_nccl_profile_is_told_by_its_name() -> None:
    profiles = {
        "default": {},
        "ring_ll": {"nccl.serving.env.NCCL_PROTO": "LL"},
        "tree": {"nccl.serving.env.NCCL_ALGO": "Tree"},
    }
    runs = [made({"nccl.serving.name": name, **env}, [0.5]) for name, env in profiles.items()]
    assert [variant.setting for variant in variants_of(runs, BENCH)] == [{"nccl.serving": name} for name in profiles]
