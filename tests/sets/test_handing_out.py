"""The state of a handing out: every shard is in one place, whatever happens to workers."""

import random

import pytest

from lantern_jax.sets.handing_out import BEGINNINGS, TRIES, Handout


def test_shards_go_out_in_order_and_a_lost_one_is_the_next():
    now = Handout.of([4, 5, 7]).take(1).take(2)
    assert (now.held, now.waiting, now.left) == ({1: 4, 2: 5}, (7,), 3)
    assert now.take(1) == now, "a worker has one shard at a time"
    now = now.lost(1, "killed")
    assert (now.held, now.waiting, now.left) == ({2: 5}, (4, 7), 3)
    now = now.written(2).take(2)
    assert now.held == {2: 4}
    now = now.take(3)
    assert now.held == {2: 4, 3: 7} and now.take(5) == now, "nothing is waiting"
    assert now.written(2).written(3).left == 0
    assert now.complaint() is None and not now.hopeless


def test_a_shard_that_fails_again_and_again_is_set_aside():
    now = Handout.of([0, 1])
    for number in range(TRIES):
        assert now.left == 2 and now.complaint() is None
        now = now.take(number).lost(number, f"reason {number}")
    assert now.left == 1 and now.waiting == (1,) and not now.hopeless
    assert now.complaint() == "shard 0 failed 3 times, the last time because: reason 2"
    assert now.take(9).written(9).left == 0


def test_failures_of_a_shard_that_is_written_do_not_count():
    now = Handout.of([0])
    for number in range(TRIES - 1):
        now = now.take(number).lost(number, "killed")
    now = now.take(8).written(8)
    assert not now.failures and not now.aside and now.left == 0


def test_when_everything_fails_it_ends():
    now, worker = Handout.of(range(100)), 0
    while not now.hopeless:
        worker += 1
        now = now.take(worker).lost(worker, "no memory")
    assert worker == TRIES * TRIES
    assert now.complaint() == "shard 0 failed 3 times (and 2 more did), the last time because: no memory"


def test_workers_that_never_begin():
    now = Handout.of([0])
    for worker in range(BEGINNINGS - 1):
        now = now.lost(worker, "no module")
    assert not now.hopeless
    assert not now.take(8).written(8).lost(9, "killed").hopeless, "what is written begins the count again"
    now = now.lost(8, "no module")
    assert now.hopeless
    assert now.complaint() == "5 workers in a row were lost before they began, the last because: no module"


@pytest.mark.parametrize("seed", range(20))
def test_no_shard_is_lost_or_doubled(seed):
    """Random takes, losses and writes against a count by hand."""
    generator, shards = random.Random(seed), list(range(30))
    now, written, losses = Handout.of(shards), [], dict.fromkeys(shards, 0)
    while now.left and not now.hopeless:
        worker = generator.randrange(4)
        before, event = now.held.get(worker), generator.random()
        if before is None:
            now = now.take(worker)
        elif event < 0.8:
            now = now.written(worker)
            written.append(before)
        else:
            now = now.lost(worker, "killed")
            losses[before] += 1
        places = [*now.waiting, *now.held.values(), *now.aside, *written]
        assert sorted(places) == shards
        assert now.left == len(now.waiting) + len(now.held)
    assert sorted(now.aside) == [shard for shard, count in losses.items() if count >= TRIES]
