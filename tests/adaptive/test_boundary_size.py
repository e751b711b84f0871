"""How many slots wait for each other: what times decide."""

from looped_jax.adaptive.boundary_size import candidates, cheapest


def test_candidates_lie_between_one_and_half_of_the_slots():
    assert candidates(16) == [1, 2, 4, 8]
    assert candidates(3) == [1]
    assert candidates(1) == [1]


def test_a_dear_boundary_is_shared_and_a_cheap_one_is_not_waited_for():
    # A boundary that takes as long for eight as for one; ticks next to nothing.
    assert cheapest(16, mean_loops=4, tick=1e-6, boundary={1: 1.0, 8: 1.0}) == 8
    # One that takes eight times as long for eight: waiting gains nothing.
    assert cheapest(16, mean_loops=4, tick=1.0, boundary={1: 0.1, 8: 0.8}) == 1
    # In between, the longer tokens loop the more it costs to wait.
    seconds = {1: 1.1, 8: 1.8}
    assert cheapest(16, mean_loops=4, tick=1.0, boundary=seconds) == 8
    assert cheapest(16, mean_loops=40, tick=1.0, boundary=seconds) == 4
    assert cheapest(1, mean_loops=4, tick=1.0, boundary={1: 1.0}) == 1
