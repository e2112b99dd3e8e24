"""A comparison as one HTML file: nothing is loaded from anywhere, so it can be mailed or kept."""

from html import escape
from pathlib import Path

from eagle3.comparison.plots import draw, svg
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
document.querySelectorAll('th').forEach((head, at) => head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0], up = head.dataset.up = head.dataset.up === '1' ? '0' : '1';
  const key = row => { const t = row.cells[at].textContent, n = parseFloat(t.replace(/,/g, ''));
    return isNaN(n) ? t : n };
  [...body.rows].sort((a, b) => { const x = key(a), y = key(b);
    return (typeof x === typeof y ? (x > y) - (x < y) : typeof x === 'number' ? -1 : 1) * (up === '1' ? 1 : -1) })
    .forEach(row => body.append(row));
}));
"""


def page(comparison: Comparison) -> str:
    """The whole file."""
    heads = "".join(f"<th>{escape(heading)}</th>" for heading in comparison.headings())
    rows = "\n".join(
        f'<tr class="{"best" if variant is comparison.best else ""}">{_cells(comparison, row)}</tr>'
        for variant, row in zip(comparison.variants, comparison.rows(), strict=True)
    )
    sentences = "\n".join(
        f'<p class="{"outcome" if number < 2 else "further"}">{escape(sentence)}</p>'
        for number, sentence in enumerate(comparison.headline())
    )
    pictures = "\n".join(f"<figure>{svg(figure)}</figure>" for figure in draw(comparison).values())
    runs = "\n".join(f"<li>{escape(v.label)}: {_paths(v.folders)}</li>" for v in comparison.variants)
    notes = "\n".join(f'<li class="left-out">{escape(str(note))}</li>' for note in comparison.notes)
    left_out = f"<h2>Left out</h2>\n<ul>{notes}</ul>" if notes else ""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Comparison of {len(comparison.variants)} drafters</title>
<style>{_STYLE}</style>
<h1>Comparison</h1>
{sentences}
<table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>
<div class="plots">
{pictures}
</div>
<h2>Runs</h2>
<ul>{runs}</ul>
{left_out}
<script>{_SORT}</script>
</html>
"""


def _cells(comparison: Comparison, row: list[str]) -> str:
    first = len(comparison.variants[0].setting) or 1
    last = first + len(comparison.columns) + (comparison.best is not None)
    return "".join(
        f'<td class="n">{escape(cell)}</td>' if first <= index <= last else f"<td>{escape(cell)}</td>"
        for index, cell in enumerate(row)
    )


def _paths(folders: list[Path]) -> str:
    return ", ".join(f"<code>{escape(str(folder))}</code>" for folder in folders)
