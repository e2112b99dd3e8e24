"""`mode=plan` of a sweep: how many jobs, what varies, who makes what and who takes it, bytes; then each job."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from eagle3.errors import EXIT_BAD_CONFIG, EXIT_DONE, EXIT_FAILED
from eagle3.files.disk import free_bytes, gib
from eagle3.pipeline.plan import Line, Plan
from eagle3.pipeline.sweep_table import Record, varied
from eagle3.units import counted, numbers


@dataclass
class _Job:
    record: Record
    plan: Plan | str
    """Or why it can't run."""

    @property
    def failures(self) -> list[str]:
        return [self.plan] if isinstance(self.plan, str) else []

    @property
    def lines(self) -> list[Line]:
        return [] if isinstance(self.plan, str) else self.plan.lines


_jobs: list[_Job] = []


def add(record: Record, plan: Plan | str) -> None:
    """Notes the plan of one job, or why it can't run; all are printed at the end."""
    _jobs.append(_Job(record, plan))


def print_sweep_plan() -> int:
    """Prints the plan of all jobs that were added. Gives the exit code: 2 where one of them can't run, 1 where what it
    makes can't be written."""
    jobs = list(_jobs)
    if not jobs:
        return EXIT_DONE
    names = [" ".join(items) or "as configured" for items in varied([job.record for job in jobs])]
    maker: dict[str, int] = {}
    for job in jobs:
        for line in job.lines:
            maker.setdefault(line.key, job.record.number)
    uses = Counter(line.key for job in jobs for line in job.lines)
    print("\n".join([*_head(jobs, uses), *_shared(jobs, uses, maker)]))
    shown: set[str] = set()
    for job, name in zip(jobs, names, strict=True):
        print(f"job {job.record.number}: {name}")
        if isinstance(job.plan, str):
            print("  can't run\n")
            continue
        others: dict[int, list[str]] = {}
        for line in job.lines:
            if line.state != "reused" and maker[line.key] != job.record.number:
                others.setdefault(maker[line.key], []).append(line.stage)
                continue
            print(f"  {line.stage:<9} {line.state:<9} {line.writes}")
            if uses[line.key] == 1 and line.stage not in shown and line.state != "reused":
                shown.add(line.stage)  # those of the other jobs differ from it in what is varied
                print("\n".join(f"    {detail}" for detail in line.details))
        print("".join(f"  of job {number}: {', '.join(stages)}\n" for number, stages in others.items()))
    failed = _by_text(jobs, lambda job: job.failures)
    refused = _by_text(jobs, lambda job: [job.plan.refused] if isinstance(job.plan, Plan) and job.plan.refused else [])
    for text, which in [*failed.items(), *refused.items()]:
        print(f"error: {which}: {text}", file=sys.stderr)
    return EXIT_BAD_CONFIG if failed else EXIT_FAILED if refused else EXIT_DONE


def _by_text(jobs: list[_Job], texts_of: Callable[[_Job], list[str]]) -> dict[str, str]:
    """{text: "job 0, 1"}: what holds for several is said once."""
    found: dict[str, list[int]] = {}
    for job in jobs:
        for text in texts_of(job):
            found.setdefault(text, []).append(job.record.number)
    return {text: f"job {numbers(jobs)}" for text, jobs in found.items()}


def _head(jobs: list[_Job], uses: Counter[str]) -> list[str]:
    plans = [job.plan for job in jobs if isinstance(job.plan, Plan)]
    if not plans:
        return [f"plan of {counted(len(jobs), 'job')}: none can run\n"]
    rows = [f"plan of {plans[0].name}: {counted(len(jobs), 'job')}, nothing is started\n"]
    values: dict[str, dict[str, None]] = {}
    for item in (item for items in varied([job.record for job in jobs]) for item in items):
        key, _, value = item.partition("=")
        values.setdefault(key, {})[value] = None
    rows += [f"varied    {key}: {', '.join(found)}" for key, found in values.items()]
    rows += plans[0].head().splitlines()
    lines = {line.key: line for job in jobs for line in job.lines}
    for stage in dict.fromkeys(line.stage for line in lines.values()):
        of_stage = [line for line in lines.values() if line.stage == stage]
        states = Counter(line.state for line in of_stage)
        used = sum(uses[line.key] for line in of_stage)
        told = ", ".join(f"{number} {state}" for state, number in states.items())
        rows.append(f"{stage:<9} {told}, for {counted(used, 'job')}")
    needed = [line.needed for line in lines.values() if line.stage == "extract"]
    if needed:
        known, free = sum(size for size in needed if size is not None), gib(free_bytes(plans[0].root))
        unknown = sum(size is None for size in needed)
        sizes = [gib(known)] * (unknown < len(needed))
        sizes += [f"{counted(unknown, 'extraction')} of unknown size (set dataset.tokens)"] * (unknown > 0)
        rows.append(f"total     {' and '.join(sizes)} of hidden states to be written; free there: {free}")
    for text, which in _by_text(jobs, lambda job: job.failures).items():
        rows.append(f"can't run {which}: {text}")
    for text, which in _by_text(jobs, lambda job: job.plan.missing if isinstance(job.plan, Plan) else []).items():
        rows.append(f"missing   {which}: {text}")
    return [*rows, ""]


def _shared(jobs: list[_Job], uses: Counter[str], maker: dict[str, int]) -> list[str]:
    """In full, once: what several jobs take."""
    first = {line.key: line for job in reversed(jobs) for line in job.lines if uses[line.key] > 1}
    order = sorted(first.values(), key=lambda line: maker[line.key])
    shown: set[str] = set()
    rows = []
    for line in order:
        if line.stage not in shown:
            shown.add(line.stage)
            users = f"for {uses[line.key]} jobs"
            state = "reused" if line.state == "reused" else f"{line.state} by job {maker[line.key]}"
            rows.append(line.text(f"{state}, {users}"))
    return rows
