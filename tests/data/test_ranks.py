"""Which data-parallel rank a request is given to."""

from eagle3.data.ranks import Ranks


def test_one_rank_is_not_named():
    ranks = Ranks(1, "0.5.23")
    assert ranks.begin([5], 100) == {}
    ranks.end({}, 100)


def test_the_least_busy_rank_is_taken_and_among_equals_each_in_turn():
    ranks = Ranks(3, "0.5.23")
    assert [ranks.begin([number], 10)["routed_dp_rank"] for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    ranks.end({"routed_dp_rank": 2}, 10)
    ranks.end({"routed_dp_rank": 2}, 10)
    assert ranks.begin([7, 8], 15) == {"routed_dp_rank": 2}
    assert ranks.begin([9], 1) == {"routed_dp_rank": 2}
    assert ranks.begin([10], 1) == {"routed_dp_rank": 2}, "has 16 tokens to do, the others 20 and more"
    # One after another, as the proof does it: nothing is in flight, and none is left out.
    alone = []
    ranks = Ranks(3, "0.5.23")
    for number in range(6):
        route = ranks.begin([number], 10)
        ranks.end(route, 10)
        alone.append(route["routed_dp_rank"])
    assert alone == [0, 1, 2, 0, 1, 2]


def test_what_comes_again_goes_where_it_was():
    ranks = Ranks(2, "0.5.9")
    route = ranks.begin([3, 4], 10)
    assert ranks.begin([4], 5) == route == {"data_parallel_rank": 0}
    ranks.end(route, 10)
    ranks.end(route, 5)
    assert ranks.begin([3], 5) == route
