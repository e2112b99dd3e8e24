"""A comparison as one HTML file: nothing is loaded from anywhere, so it can be mailed or kept."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from eagle3.comparison.groups import BEHIND, Group
from eagle3.comparison.outcome import headline
from eagle3.comparison.plots import draw, svg
from eagle3.comparison.ranking import Place, Ranking
from eagle3.comparison.render import best_rows, runs_of
from eagle3.comparison.table import Comparison

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1c1e21 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .35rem .7rem; border-bottom: 1px solid #e3e5e8; text-align: left; white-space: nowrap }
th { cursor: pointer; border-bottom: 2px solid #5a5f68 } tr.best { background: #e8f1f8; font-weight: 600 }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start }
figure { margin: 0; flex: 1 1 30rem; max-width: 40rem } svg { width: 100%; height: auto }
p { margin: .2rem 0 } p.outcome { font-size: 17px } p.further { color: #5a5f68 }
code { font-size: 13px } .left-out { color: #5a5f68 }
"""
_SORT = """
document.querySelectorAll('th').forEach(head => head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0], at = head.cellIndex;
  const up = head.dataset.up = head.dataset.up === '1' ? '0' : '1';
  const key = row => { const t = 'sorted' in head.dataset ? row.dataset.behind : row.cells[at].textContent;
    const n = parseFloat(t.replace(/,/g, ''));
    return isNaN(n) ? t : n };
  [...body.rows].sort((a, b) => { const x = key(a), y = key(b);
    return (typeof x === typeof y ? (x > y) - (x < y) : typeof x === 'number' ? -1 : 1) * (up === '1' ? 1 : -1) })
    .forEach(row => body.append(row));
}));
"""


def page(comparison: Comparison) -> str:
    """The whole file."""
    sentences = "\n".join(
        f'<p class="{"outcome" if number < 2 else "further"}">{escape(sentence)}</p>'
        for number, sentence in enumerate(headline(comparison))
    )
    pictures = "\n".join(f"<figure>{svg(figure)}</figure>" for figure in draw(comparison).values())
    runs = "\n".join(f"<li>{escape(label)}: {_paths(folders)}</li>" for label, folders in runs_of(comparison))
    notes = "\n".join(f'<li class="left-out">{escape(str(note))}</li>' for note in comparison.notes)
    left_out = f"<h2>Left out</h2>\n<ul>{notes}</ul>" if notes else ""
    body = "\n".join(_tables(comparison))
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(comparison.title)}</title>
<style>{_STYLE}</style>
<h1>{escape(comparison.title)}</h1>
{sentences}
{body}
<div class="plots">
{pictures}
</div>
<h2>Runs</h2>
<ul>{runs}</ul>
{left_out}
<script>{_SORT}</script>
</html>
"""


def _tables(comparison: Comparison) -> Iterator[str]:
    titled = len(comparison.drafters) > 1
    for group in comparison.drafters:
        yield (f"<h2>{escape(group.measured.capitalize())}</h2>\n" if titled else "") + _drafters(group)
    for ranking in (ranking for group in comparison.targets for ranking in group.rankings):
        yield f"<h2>By {escape(ranking.name)}</h2>\n{_ranking(ranking)}"


def _drafters(group: Group) -> str:
    first = len(group.settings)
    numbers = range(first, first + len(group.columns) + group.led + 1)
    rows = [
        _row(row, numbers, _order(group.place(variant)), best)
        for variant, row, best in zip(group.variants, group.rows(), best_rows(group), strict=True)
    ]
    return _table(group.headings(), rows)


def _ranking(ranking: Ranking) -> str:
    pairs = zip(ranking.places, ranking.rows(), ranking.best_rows(), strict=True)
    rows = [_row(row, range(1, 3), _order(place), best) for place, row, best in pairs]
    return _table(ranking.headings(), rows)


def _order(place: Place | None) -> str:
    """What a click on "behind the best" sorts by: its cells begin with words."""
    return "" if place is None else str(place.lost)


def _table(headings: list[str], rows: list[str]) -> str:
    heads = "".join(f"<th{' data-sorted' if heading == BEHIND else ''}>{escape(heading)}</th>" for heading in headings)
    lines = "\n".join(rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{lines}\n</tbody></table>"


def _row(cells: list[str], numbers: range, order: str, best: bool) -> str:
    found = "".join(
        f'<td class="n">{escape(cell)}</td>' if index in numbers else f"<td>{escape(cell)}</td>"
        for index, cell in enumerate(cells)
    )
    return f'<tr class="{"best" if best else ""}" data-behind="{order}">{found}</tr>'


def _paths(folders: list[Path]) -> str:
    return ", ".join(f"<code>{escape(str(folder))}</code>" for folder in folders)
