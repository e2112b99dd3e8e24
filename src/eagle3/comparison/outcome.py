"""The outcome of a comparison in sentences: the best, whether that is more than noise, the spread, what it cost."""

from eagle3.comparison.columns import dataset_of
from eagle3.comparison.noise import Verdict, is_equal
from eagle3.comparison.table import Comparison
from eagle3.tracking.cost import stage_hours

_HOW = {"simulated": "simulated", "chain": "of real drafts, without a server", "served": "served"}


def headline(found: Comparison) -> list[str]:
    """Of drafters first, then of the served target."""
    lines = _drafters(found) if found.variants else []
    lines += [ranking.sentence() for ranking in found.of_the_target]
    for note in dict.fromkeys(note for run in found.all_runs for note in run.not_followed):
        labels = [v.label for v in found.served if any(note in run.not_followed for run in v.runs)]
        lines.append(f"{', '.join(labels)}: {note}.")
    lines += _spread(found)
    lines += _lengths(found)
    if found.variants and not found.several_datasets:
        lines.append(f"Dataset: {dataset_of(found.variants[0].runs[0])}.")
    return [*lines, *_cost(found)]


def _drafters(found: Comparison) -> list[str]:
    best = found.best
    if best is None:
        return ["Nothing here was evaluated, so there is no best drafter."]
    length, kind = best.accept_length(), best.runs[0].kind
    drafted = "1 drafted token" if best.steps == 1 else f"{best.steps} drafted tokens"
    return [f"Best: {best.label}, accept length {length:.3f} ({_HOW.get(kind, kind)}, {drafted}).", *_lead(found)]


def _lead(found: Comparison) -> list[str]:
    """Against the runner-up, and how many cannot be told from the best."""
    others = [(variant, found.verdict(variant)) for variant in found.variants if variant is not found.best]
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
        lines.append(f"{unknown} can't be compared with it; the table says why.")
    return lines


def _spread(found: Comparison) -> list[str]:
    """What the ± in the tables is of."""
    sources = list(dict.fromkeys(v.spread.source for v in found.variants if v.spread is not None))
    seeds, bootstrap = (any(word in source for source in sources) for word in ("seeds", "bootstrap"))
    rounds = [place for ranking in found.of_the_target for place in ranking.places if place.spread is not None]
    sources += [f"{count} rounds" for count in dict.fromkeys(place.count for place in rounds)]
    if not sources:
        return []
    said = [f"± is one standard deviation: {', '.join(sources)}."]
    if seeds:
        said.append("Seeds hold the noise of training on the same held-out conversations.")
    if bootstrap:
        said.append("A bootstrap holds the noise of the measurement alone: another seed may differ by more.")
    if rounds:
        said.append("A round starts the server anew.")
    return [" ".join(said)]


def _lengths(found: Comparison) -> list[str]:
    longest = max((variant.steps for variant in found.variants), default=0)
    if longest <= found.steps:
        return []
    return [
        f"Drafters draft {found.steps} to {longest} tokens, and each is ranked with all of its own, as it is served; "
        f"the column `at {found.steps}` is the accept length of each with {found.steps}."
    ]


def _cost(found: Comparison) -> list[str]:
    """Of all runs together; an artifact that several share counts once. [] where no time is known."""
    hours: dict[str, tuple[float, float]] = {}
    runs = found.all_runs
    for run in runs:
        folders = run.provenance.get("artifacts") or {}
        for stage, spent in stage_hours(run.summary, run.config).items():
            hours[str(folders.get(stage, (run.folder, stage)))] = spent
    gpu, cpu = (sum(spent[i] for spent in hours.values()) for i in (0, 1))
    text = [f"{gpu:.3g} GPU-hours"] * (gpu > 0) + [f"{cpu:.3g} hours on a CPU"] * (cpu > 0)
    if not text:
        return []
    spent = " and ".join(text)
    return [
        f"{len(runs)} runs took {spent}; what they share counts once." if len(runs) > 1 else f"The run took {spent}."
    ]
