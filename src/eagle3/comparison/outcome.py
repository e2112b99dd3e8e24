"""The outcome of a comparison in sentences: the best, whether that is more than noise, the spread, what it cost."""

from eagle3.comparison.groups import Group
from eagle3.comparison.noise import Verdict, is_equal
from eagle3.comparison.runs import dataset_of
from eagle3.comparison.table import Comparison
from eagle3.comparison.variants import Variant
from eagle3.evaluation.followed import Agreement
from eagle3.server.nccl_log import UNUSED
from eagle3.tracking.cost import stage_hours
from eagle3.units import counted


def headline(found: Comparison) -> list[str]:
    """Of each group of drafters, then of the served target."""
    several = len(found.evaluated) > 1
    lines = [line for group in found.evaluated for line in _drafters(group, several)]
    if several:
        lines.append("What was measured in different ways is not compared: each way has a best of its own.")
    if found.drafters and not found.evaluated:
        lines.append("Nothing here was evaluated, so there is no best drafter.")
    lines += [ranking.sentence() for group in found.targets for ranking in group.rankings]
    lines += [line for group in found.targets for line in _profiles(group)]
    for note in dict.fromkeys(note for run in found.all_runs for note in run.not_followed):
        lines.append(f"{', '.join(label for v in found.served for label in _labels(v, note))}: {note}.")
    lines += [f"{v.label}: {told}." for group in found.evaluated for v in group.variants for told in _disagreements(v)]
    lines += _spread(found)
    datasets = {dataset_of(run) for variant in found.variants for run in variant.runs}
    if len(datasets) == 1:
        lines.append(f"Dataset: {datasets.pop()}.")
    return [*lines, *_cost(found)]


def _drafters(group: Group, several: bool) -> list[str]:
    """Args: several: whether there are others, that were measured in another way."""
    best = group.best
    assert best is not None
    length, drafted = f"accept length {best.accept_length():.3f}", counted(best.steps, "drafted token")
    if len(group.variants) > 1:
        said = f"Best: {best.label}, {length} ({group.measured}, {drafted})."
    elif several:
        said = f"{best.label}: {length} ({group.measured}, {drafted}); nothing else here was measured so."
    else:
        said = f"{best.label}: {length} ({group.measured}, {drafted})."
    further = [ranking.sentence() for ranking in group.rankings if ranking is not group.by_length]
    return [said, *_lead(group), *further, *_lengths(group)]


def _lead(group: Group) -> list[str]:
    """Against the runner-up, and how many cannot be told from the best."""
    others = [(variant, group.verdict(variant)) for variant in group.variants if variant is not group.best]
    judged = [(variant, verdict) for variant, verdict in others if isinstance(verdict, Verdict)]
    if not others:
        return []
    if not judged:
        return [f"Whether that exceeds the noise is not known: {others[0][1]}."]
    runner_up, verdict = min(judged, key=lambda pair: pair[1].difference)
    if is_equal(verdict.difference) and not verdict.exceeds:
        lines = [f"The next, {runner_up.label}, is equal ({verdict.source})."]
    else:
        more = "more than the noise" if verdict.exceeds else "no more than the noise, a tie"
        lines = [f"Ahead of the next, {runner_up.label}, by {verdict.shown()}: {more} ({verdict.source})."]
    ties = sum(not verdict.exceeds for _, verdict in judged)
    if ties > 1:
        lines.append(f"{ties} of {len(judged)} others can't be told from it.")
    unknown = len(others) - len(judged)
    if unknown:
        lines.append(f"Of {unknown} it is not known whether they can; the table says why.")
    return lines


def _disagreements(variant: Variant) -> list[str]:
    """Of chains on served answers: those that did not find what the server had."""
    followed = [Agreement.of_summary(run.summary) for run in variant.distinct]
    return [str(found) for found in followed if found is not None and not found.agrees]


def _labels(variant: Variant, note: str) -> list[str]:
    """The variant, where the note is of all its runs; else those of which it is, by their folders."""
    having = [run for run in variant.runs if note in run.not_followed]
    return [variant.label] if len(having) == len(variant.runs) else [run.folder.name for run in having]


def _profiles(group: Group) -> list[str]:
    """Of a served target for which NCCL did nothing: why its profiles are no rows."""
    silent = [run for variant in group.variants for run in variant.runs if run.nccl_unused]
    names = dict.fromkeys(str(run.config.get("nccl.serving.name")) for run in silent)
    if not silent:
        return []
    if len(names) < 2:
        changed = any(key.startswith("nccl.serving.env.") for run in silent for key in run.config)
        return [f"{UNUSED}, so its profile changed nothing: {', '.join(names)}."] * changed
    said = f"{UNUSED}, so its profiles changed nothing and are not compared: {', '.join(names)}."
    return [f"{said} What was measured under them counts as rounds of one configuration."]


def _lengths(group: Group) -> list[str]:
    longest = max(variant.steps for variant in group.variants)
    if longest <= group.steps:
        return []
    return [
        f"Drafters draft {group.steps} to {longest} tokens, and each is ranked with all of its own, as it is served; "
        f"the column `at {group.steps}` is the accept length of each with {group.steps}."
    ]


def _spread(found: Comparison) -> list[str]:
    """What the ± in the tables is of."""
    sources = list(dict.fromkeys(v.spread.source for v in found.variants if v.spread is not None))
    seeds, bootstrap = (any(word in source for source in sources) for word in ("seeds", "bootstrap"))
    ranked = [place for group in found.targets for ranking in group.rankings for place in ranking.places]
    rounds = [place for place in ranked if place.spread is not None]
    repeats = any(isinstance(place.verdict, Verdict) and place.verdict.interval != "95%" for place in ranked)
    within = "With one round each an interval is that of the repeats of one server: another start may differ by more."
    sources += [f"{count} rounds" for count in dict.fromkeys(place.count for place in rounds)]
    if not sources:
        return [within] * repeats
    said = [f"± is one standard deviation: {', '.join(sources)}."]
    if seeds:
        said.append("Seeds hold the noise of training on the same held-out conversations.")
    if bootstrap:
        said.append("A bootstrap holds the noise of the measurement alone: another seed may differ by more.")
    if rounds:
        said.append("A round starts the server anew.")
    if repeats:
        said.append(within)
    return [" ".join(said)]


def _cost(found: Comparison) -> list[str]:
    """Of all runs together; an artifact that several share counts once. [] where no time is known."""
    hours: dict[str, tuple[float, float]] = {}
    runs = []
    for run in found.all_runs:
        folders = run.provenance.get("artifacts") or {}
        stages = stage_hours(run.summary, run.config)
        runs += [run] * bool(stages)
        for stage, spent in stages.items():
            hours[str(folders.get(stage, (run.folder, stage)))] = spent
    gpu, cpu = (sum(spent[i] for spent in hours.values()) for i in (0, 1))
    text = [f"{gpu:.3g} GPU-hours"] * (gpu > 0) + [f"{cpu:.3g} hours on a CPU"] * (cpu > 0)
    if not text:
        return []
    spent, unknown = " and ".join(text), len(found.all_runs) - len(runs)
    told = f"{len(runs)} runs took {spent}; what they share counts once." if len(runs) > 1 else f"The run took {spent}."
    if unknown:
        told = told.replace("The run", "1 run") + f" Of {unknown} more the time is not known."
    return [told]
