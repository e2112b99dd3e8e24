"""Sequences of several shards are sent in turns, so that the writers do not wait for each other's file."""

from hypothesis import given
from hypothesis import strategies as st

from eagle3.data.spreading import LANES, RUN_TOKENS, spread

SHARDS = st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=40), max_size=20)


@given(SHARDS, st.data())
def test_each_sequence_once_and_in_order_within_its_shard(shards: list[list[int]], data: st.DataObject) -> None:
    shard = [number for number, lengths in enumerate(shards) for _ in lengths]
    length = [tokens for lengths in shards for tokens in lengths]
    missing = [i for i in range(len(shard)) if data.draw(st.booleans())]
    sent = list(spread(missing, shard, length))
    assert sorted(sent) == missing
    for number in range(len(shards)):
        own = [i for i in sent if shard[i] == number]
        assert own == sorted(own)


def test_shards_take_turns_and_a_full_one_makes_room() -> None:
    shard = [number for number in range(12) for _ in range(40)]
    order = [shard[i] for i in spread(range(len(shard)), shard, [1024] * len(shard))]
    run = RUN_TOKENS // 1024
    assert order[: run * LANES] == [number for number in range(LANES) for _ in range(run)]
    begun = [order.index(number) for number in range(12)]
    assert begun == sorted(begun)
    for at in range(len(order)):
        open_now = {n for n in range(12) if n in order[:at] and n in order[at:]}
        assert len(open_now) <= LANES
