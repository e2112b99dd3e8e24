"""The formats by the names that the command line has for them."""

from eagle3.data.exchange import specforge, speculators, speculators_v1
from eagle3.data.exchange.formats import Format

FORMATS: dict[str, Format] = {f.name: f for f in (speculators.FORMAT, speculators_v1.FORMAT, specforge.FORMAT)}
