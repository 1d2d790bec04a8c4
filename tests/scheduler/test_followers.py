"""Equal prefixes that arrive together are computed once, and nobody waits for long; forks and beams copy as little as can be."""

from array import array
from dataclasses import replace

import pytest
from driving import Driver, make_beam_request, make_request, make_scheduler, run_alone

from octavo.core.cache_key import CacheKey
from octavo.core.request import Request
from octavo.scheduler import Scheduler
from octavo.scheduler.followers import Followers, common_prefix
from octavo.scheduler.sequence import Sequence, Status

both_indexes = pytest.mark.parametrize("prefix_index", ["hash", "radix"])


def sharing(count: int, prompt_len: int, max_tokens: int = 4, *, topic: int = 1, own: int = 0, **params: object) -> list[Request]:
    """Requests with one prompt, each with `own` more tokens that nobody else has."""
    requests = [make_request(f"{topic}-{n}", prompt_len, max_tokens, seed=n, topic=topic, **params) for n in range(count)]
    tails = [tuple(900 + (n + 7 * i) % 97 for i in range(own)) for n in range(count)]
    return [replace(one, prompt_token_ids=one.prompt_token_ids + tail) for one, tail in zip(requests, tails, strict=True)]


def started(scheduler: Scheduler, requests: list[Request]) -> Driver:
    driver = Driver(scheduler)
    for request in requests:
        scheduler.add(request)
    return driver


def statuses(scheduler: Scheduler) -> list[Status]:
    return [sequence.status for sequence in sorted(scheduler._population.roster, key=lambda one: one.seq_id)]


def leader_of(scheduler: Scheduler, seq_id: int) -> int | None:
    sequence = scheduler._population.roster.get(seq_id)
    assert sequence is not None
    return None if sequence.leader is None else sequence.leader.seq_id


def prompt_rows(driver: Driver) -> int:
    return sum(len(chunk.tokens) for plan in driver.runner.plans for chunk in plan.chunks if len(chunk.tokens) > 1)


@both_indexes
def test_they_wait_visibly_and_enter_when_the_prefix_is_there(prefix_index: str) -> None:
    driver = started(make_scheduler(100, prefix_index=prefix_index), sharing(6, 64, own=5))
    plan = driver.step()
    assert [chunk.seq_id for chunk in plan.chunks] == [0]
    stats = driver.scheduler.stats()
    assert (stats.running, stats.waiting, stats.following) == (1, 5, 5)
    assert statuses(driver.scheduler) == [Status.RUNNING] + [Status.FOLLOWING] * 5
    plan = driver.step()
    chunks = [(chunk.seq_id, chunk.start, len(chunk.tokens)) for chunk in plan.chunks]
    assert chunks == [(0, 69, 1), *((n, 64, 5) for n in range(1, 6))]
    assert driver.scheduler.stats().following == 0
    driver.drain()
    assert prompt_rows(driver) == 64 + 6 * 5
    assert driver.scheduler.stats().overtakes == 0


def test_what_memory_holds_already_needs_nobody_to_follow() -> None:
    driver = started(make_scheduler(100, prefix_index="hash"), sharing(1, 64))
    driver.drain()
    for request in sharing(4, 64, topic=1, own=3):
        driver.scheduler.add(replace(request, request_id=request.request_id + " again"))
    driver.step()
    assert driver.scheduler.stats().running == 4
    driver.drain()


def test_less_than_a_block_in_common_is_nothing_to_wait_for() -> None:
    driver = started(make_scheduler(100, prefix_index="hash"), sharing(4, 15, own=20))
    driver.step()
    assert driver.scheduler.stats().running == 4
    driver.drain()


def test_other_tenants_do_not_follow() -> None:
    requests = [replace(one, tenant=f"tenant {n % 2}") for n, one in enumerate(sharing(4, 64))]
    driver = started(make_scheduler(100, prefix_index="hash"), requests)
    driver.step()
    assert statuses(driver.scheduler) == [Status.RUNNING, Status.RUNNING, Status.FOLLOWING, Status.FOLLOWING]
    assert [leader_of(driver.scheduler, seq_id) for seq_id in range(4)] == [None, None, 0, 1]
    driver.drain()


def test_who_does_not_follow_enters_past_those_who_do() -> None:
    others = [make_request(f"other {n}", 20, 4, seed=50 + n, topic=500 + n) for n in range(3)]
    driver = started(make_scheduler(100, prefix_index="hash"), [*sharing(5, 64), *others])
    plan = driver.step()
    assert [chunk.seq_id for chunk in plan.chunks] == [0, 5, 6, 7]
    driver.drain()
    stats = driver.scheduler.stats()
    assert stats.overtakes == 0
    assert max(driver.first_step.values()) == 2


def test_a_queue_whose_head_follows_is_not_a_queue_whose_head_does_not_fit() -> None:
    """A follower neither blocks those behind it nor spends a head's overtakes, and a head that doesn't fit isn't skipped for it."""
    big = make_request("big", 100, 60, seed=9, topic=300)
    driver = started(
        make_scheduler(12, prefix_index="hash"), [*sharing(3, 64, 40), big, make_request("small", 10, 2, seed=8, topic=400)]
    )
    driver.step()
    scheduler = driver.scheduler
    assert statuses(scheduler)[:3] == [Status.RUNNING, Status.FOLLOWING, Status.FOLLOWING]
    assert all(sequence.times_overtaken == 0 for sequence in scheduler._population.roster if sequence.status is Status.FOLLOWING)
    driver.drain()
    assert set(driver.reasons.values()) == {"length"}


@both_indexes
def test_one_that_is_aborted_before_it_has_written_is_followed_by_the_next(prefix_index: str) -> None:
    driver = started(make_scheduler(100, prefix_index=prefix_index), sharing(4, 64))
    scheduler = driver.scheduler
    plan = scheduler.schedule()
    assert scheduler.stats().following == 3
    scheduler.abort("1-0")
    scheduler.commit(plan, driver.runner.execute(plan))
    plan = driver.step()
    assert [(chunk.seq_id, chunk.start) for chunk in plan.chunks] == [(1, 0)]
    assert [leader_of(scheduler, seq_id) for seq_id in (2, 3)] == [1, 1]
    driver.drain()
    assert sorted(driver.reasons) == [("1-1", 0), ("1-2", 0), ("1-3", 0)]


def test_one_that_fails_is_followed_by_the_next() -> None:
    driver = started(make_scheduler(100, prefix_index="hash"), sharing(5, 64))
    driver.runner.failing = {0, 3}
    plans = [driver.step() for _ in range(3)]
    assert [[(chunk.seq_id, chunk.start) for chunk in plan.chunks] for plan in plans] == [
        [(0, 0)],
        [(1, 0)],
        [(1, 64), (2, 63), (3, 63), (4, 63)],
    ]
    driver.drain()
    assert [driver.reasons[f"1-{n}", 0] for n in range(5)] == ["error", "length", "length", "error", "length"]


def test_a_row_of_those_that_fail_is_not_waited_for() -> None:
    """Two steps are longer than computing the prompt alone takes: then everybody does."""
    driver = started(make_scheduler(100, prefix_index="hash"), sharing(6, 64))
    driver.runner.failing = {0, 1, 2}
    plans = [driver.step() for _ in range(3)]
    assert [[chunk.seq_id for chunk in plan.chunks] for plan in plans] == [[0], [1], [2, 3, 4, 5]]
    driver.drain()


def test_one_that_is_preempted_half_way_leaves_what_it_wrote() -> None:
    driver = started(make_scheduler(100, prefix_index="hash", max_num_batched_tokens=40), sharing(4, 100))
    scheduler = driver.scheduler
    driver.step()
    scheduler._preempt_youngest()
    for request in sharing(1, 100, topic=1, priority=-1):  # it goes first now, so the one that began follows it
        scheduler.add(replace(request, request_id="first"))
    plan = driver.step()
    assert [(chunk.seq_id, chunk.start, len(chunk.tokens)) for chunk in plan.chunks] == [(4, 40, 40)]
    driver.drain()
    assert prompt_rows(driver) == 100
    assert driver.scheduler.stats().prompt_tokens_cached == 40 + 3 * 99


def test_a_preempted_follower_keeps_its_status() -> None:
    driver = started(make_scheduler(100, prefix_index="hash"), [*sharing(1, 64, 20), make_request("x", 20, 9, topic=700)])
    scheduler = driver.scheduler
    driver.step()
    while scheduler._running:
        scheduler._preempt_youngest()
    scheduler.manager.reset_cache()
    for request in sharing(1, 64, topic=1, priority=-1):
        scheduler.add(replace(request, request_id="first"))
    driver.step()
    assert statuses(scheduler) == [Status.FOLLOWING, Status.RUNNING, Status.RUNNING]
    plan = scheduler.schedule()
    scheduler.drop(plan)
    assert statuses(scheduler) == [Status.RUNNING] * 3
    driver.drain()
    assert {key: tokens for key, tokens in driver.tokens.items() if key[0] == "1-0"} == run_alone(sharing(1, 64, 20)[0])


def followers_at(scheduler: Scheduler) -> tuple[Followers, Sequence, Sequence]:
    """Followers of their own, with a sequence that computes 100 tokens, and one that wants the same."""
    key = CacheKey()
    first, second = sharing(2, 100)
    leader, follower = Sequence.of(first, key, 0, 0), Sequence.of(second, key, 1, 1)
    leader.status = Status.RUNNING
    return Followers(scheduler.manager), leader, follower


def test_nobody_waits_longer_than_computing_alone_takes() -> None:
    followers, leader, follower = followers_at(make_scheduler(100, prefix_index="hash"))
    rate = 1000.0  # 100 tokens: a tenth of a second
    followers.survey([leader], 5.0, rate)
    assert followers.follows(follower, 0)
    assert follower.status is Status.FOLLOWING
    for clock, waits in ((5.0, True), (5.05, True), (5.0999, True), (5.1001, False)):
        followers.survey([leader], clock, rate)
        assert followers.keeps_waiting(follower) == waits
    assert (follower.status, follower.leader) == (Status.WAITING, None)
    # The same slow one, or another, is not followed once more: the wait is counted from the first.
    other = Sequence.of(sharing(3, 100)[2], CacheKey(), 2, 2)
    other.status = Status.RUNNING
    followers.survey([leader, other], 5.1001, rate)
    assert not followers.follows(follower, 0)
    assert follower.status is Status.WAITING


def test_what_is_found_meanwhile_shortens_the_wait() -> None:
    followers, leader, follower = followers_at(make_scheduler(100, prefix_index="hash"))
    followers.survey([leader], 0.0, 1000.0)
    assert followers.follows(follower, 80)
    followers.survey([leader], 0.03, 1000.0)
    assert not followers.keeps_waiting(follower)


@pytest.mark.parametrize("status", [Status.FINISHED, Status.PREEMPTED, Status.WAITING])
def test_one_that_is_gone_is_waited_for_no_longer(status: Status) -> None:
    followers, leader, follower = followers_at(make_scheduler(100, prefix_index="hash"))
    followers.survey([leader], 0.0, 0.0)
    assert followers.follows(follower, 0)
    assert followers.keeps_waiting(follower)
    leader.status = status
    assert not followers.keeps_waiting(follower)


def test_a_common_prefix_is_counted_in_tokens() -> None:
    for length in range(40):
        ours, theirs = array("i", range(40)), array("i", [*range(length), 99, *range(length)])
        for more_than in range(40):
            assert common_prefix(ours, theirs, more_than) == (length if length > more_than else 0)


@pytest.mark.parametrize("settings", [{"prefix_index": None}, {"prefix_index": "hash", "batching": "static"}])
def test_nobody_follows_where_nothing_is_found_or_a_batch_is_taken_whole(settings: dict[str, str]) -> None:
    driver = started(make_scheduler(100, **settings), sharing(4, 64))
    driver.step()
    assert driver.scheduler.stats().running == 4
    driver.drain()


def test_without_caching_samples_of_one_request_follow_each_other_only() -> None:
    requests = [make_request("a", 64, 4, seed=1, topic=1, n=3), make_request("b", 64, 4, seed=2, topic=1, n=2)]
    driver = started(make_scheduler(100), requests)
    driver.step()
    assert statuses(driver.scheduler) == [Status.RUNNING, Status.FOLLOWING, Status.FOLLOWING, Status.RUNNING, Status.FOLLOWING]
    driver.drain()
    assert prompt_rows(driver) == 2 * 64
    for request in requests:
        assert {key: tokens for key, tokens in driver.tokens.items() if key[0] == request.request_id} == run_alone(request)


@pytest.mark.parametrize("num_blocks", [8, 14, 40])
@pytest.mark.parametrize("max_num_batched_tokens", [16, 48, 2048])
@pytest.mark.parametrize("prefix_index", ["hash", "radix", None])
def test_nothing_waits_for_ever(num_blocks: int, max_num_batched_tokens: int, prefix_index: str | None) -> None:
    """Chains of prefixes, in a memory that is short, while those that are followed fail, are aborted or preempted."""
    scheduler = make_scheduler(num_blocks, prefix_index=prefix_index, max_num_batched_tokens=max_num_batched_tokens)
    requests = [
        make_request(f"{n}", 20 + 11 * (n * 5 % 8), 1 + n % 20, seed=n, topic=n % 3, n=1 + (n % 4 == 0), priority=n % 2)
        for n in range(30)
    ]
    driver = started(scheduler, requests)
    driver.runner.failing = {0, 7, 11}

    def disturb(driver: Driver) -> None:
        if driver.steps > 100:
            return
        if driver.steps % 7 == 3 and scheduler._running:
            scheduler._preempt_youngest()
        if driver.steps % 9 == 5:
            scheduler.abort(f"{driver.steps % 30}")

    driver.drain(most_steps=1000, before_step=disturb)


# Forks.


@pytest.mark.parametrize("prefix_index", ["hash", "radix", None])
@pytest.mark.parametrize("prompt_len", [96, 100])
def test_eight_samples_hold_their_prompt_once(prefix_index: str | None, prompt_len: int) -> None:
    request = make_request("r", prompt_len, 10, seed=3, n=8)
    driver = started(make_scheduler(200, prefix_index=prefix_index), [request])
    full, is_open = divmod(prompt_len, 16)
    for _ in range(3):  # the prompt; the samples' first tokens; those tokens' K and V
        driver.step()
    stats = driver.scheduler.stats()
    assert stats.running == 8
    assert stats.blocks_leased == full + 8  # all but the block in which they go apart
    assert stats.blocks_saved == 7 * full
    assert stats.tokens_forked == 7 * prompt_len
    assert stats.tokens_computed == prompt_len + 7 + 8 + 1
    assert prompt_rows(driver) == prompt_len
    driver.drain()
    assert driver.runner.num_copies == (7 if is_open else 0)
    assert driver.tokens == run_alone(request)


@pytest.mark.parametrize("prefix_index", ["hash", "radix", None])
def test_samples_of_one_token_copy_nothing(prefix_index: str | None) -> None:
    driver = started(make_scheduler(200, prefix_index=prefix_index), [make_request("r", 100, 1, seed=3, n=8)])
    driver.drain()
    assert driver.runner.num_copies == 0
    assert driver.scheduler.stats().tokens_computed == 100 + 7


@pytest.mark.parametrize("prefix_index", ["hash", "radix", None])
@pytest.mark.parametrize(("prompt_len", "width"), [(100, 4), (33, 2), (40, 8)])
def test_a_beam_is_copied_at_most_once_in_a_step(prefix_index: str | None, prompt_len: int, width: int) -> None:
    driver = started(make_scheduler(200, prefix_index=prefix_index), [make_beam_request("b", prompt_len, 40, width, topic=5)])
    while driver.scheduler.has_work:
        before = driver.runner.num_copies
        plan = driver.step()
        copied = [chunk for chunk in plan.chunks if chunk.copies]
        assert all(len(chunk.copies) == 1 for chunk in copied)
        assert driver.runner.num_copies - before == len(copied) <= width - 1  # one of those that share a block goes on in it
        stats = driver.scheduler.stats()
        # The prompt's full blocks once, and of what was generated no more than each beam's own.
        assert stats.blocks_leased <= prompt_len // 16 + width * (-(-(prompt_len + 40) // 16) - prompt_len // 16)
    driver.drain()
    assert driver.runner.num_copies > 0
    assert len(driver.reasons) == width
