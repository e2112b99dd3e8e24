"""Which of the server's data-parallel ranks computes a sequence, where there are several.

SGLang would deal requests out by itself, and a sequence that is sent again, because a connection broke, would come to
another rank than before. That one's writer can't know that the sequence is committed: it would write over rows whose
checksum is noted, with what is not quite the same to the last bit. So we deal out, and remember.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3.server.required import rank_key


class Ranks:
    """Of one run of the server."""

    def __init__(self, count: int, sglang_version: str) -> None:
        self.count = count
        self._key = rank_key(sglang_version)
        self._of: dict[int, int] = {}
        self._loads = [(0, 0)] * count
        """Tokens in flight, and requests so far."""

    def begin(self, sample_ids: Sequence[int], tokens: int) -> Mapping[str, Any]:
        """What to add to the request for these sequences, of so many tokens: the rank with the least to do.

        A sequence that is sent again comes alone, and to its rank of before. Empty where there is one rank only.
        """
        if self.count == 1:
            return {}
        rank = self._of.get(sample_ids[0])
        if rank is None:
            rank = self._loads.index(min(self._loads))
            self._of |= dict.fromkeys(sample_ids, rank)
        in_flight, requests = self._loads[rank]
        self._loads[rank] = (in_flight + tokens, requests + 1)
        return {self._key: rank}

    def end(self, route: Mapping[str, Any], tokens: int) -> None:
        """The request that `begin` gave `route` for is answered, or has failed."""
        if route:
            in_flight, requests = self._loads[route[self._key]]
            self._loads[route[self._key]] = (in_flight - tokens, requests)
