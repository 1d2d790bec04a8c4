"""The prefix indexes' rules, one by one; `test_prefix_index_machine.py` mixes them."""

import os
import random
import subprocess
import sys
from array import array
from collections.abc import Callable

import pytest
from plain_index import PlainIndex

from octavo.kv import heads
from octavo.kv.hash_index import HashIndex
from octavo.kv.heads import Branch, Leaf
from octavo.kv.prefix_index import Cursor, NoIndex, PrefixIndex
from octavo.kv.radix_index import RadixIndex

INDEXES = [HashIndex, RadixIndex, PlainIndex]
every_index = pytest.mark.parametrize("make", INDEXES, ids=lambda make: make.__name__)
both_indexes = pytest.mark.parametrize("make", INDEXES[:2], ids=lambda make: make.__name__)
Make = Callable[[int], PrefixIndex]


def letters(text: str) -> array:
    return array("i", map(ord, text))


def insert(index: PrefixIndex, text: str, blocks: list[int], root: bytes = b"key") -> Cursor:
    """Full blocks of `text` from its beginning; the cursor after them."""
    cursor, refused = index.insert_all(index.root(root), letters(text), 0, blocks)
    assert refused == []
    return cursor


def hit(index: PrefixIndex, text: str, limit: int = 1000, skip: int = 0, root: bytes = b"key") -> tuple:
    index.check()
    match = index.match(index.root(root), letters(text), limit, skip)
    return match.blocks, match.head, match.head_tokens, match.head_fill


NOTHING = ((), None, 0, 0)


@every_index
def test_hits_are_token_exact(make: Make) -> None:
    index = make(4)
    insert(index, "abcdefghijkl", [3, 1, 2])
    assert hit(index, "abcdefghijkl") == ((3, 1, 2), None, 0, 0)
    assert hit(index, "abcdefghijXX") == ((3, 1), 2, 2, 4)
    assert hit(index, "abcdefg") == ((3,), 1, 3, 4)
    assert hit(index, "abcdefghijkl", limit=11) == ((3, 1), 2, 3, 4)
    assert hit(index, "abXdefghijkl") == ((), 3, 2, 4)
    assert hit(index, "efgh") == hit(index, "") == hit(index, "abcd", limit=0) == hit(index, "abcd", limit=-1) == NOTHING


@every_index
def test_roots_share_nothing(make: Make) -> None:
    index = make(2)
    insert(index, "abcd", [0, 1], b"one")
    insert(index, "abcd", [2, 3], b"other")
    assert hit(index, "abcd", root=b"one")[0] == (0, 1)
    assert hit(index, "abcd", root=b"other")[0] == (2, 3)
    assert hit(index, "abcd", root=b"a third") == NOTHING


@every_index
def test_the_second_block_with_the_same_content_is_refused(make: Make) -> None:
    index = make(2)
    insert(index, "ab", [0])
    cursor, findable = index.insert(index.root(b"key"), letters("ab"), 0, 7)
    assert not findable and index.fill(7) == 0
    assert index.insert(cursor, letters("abcd"), 2, 8).findable
    assert hit(index, "abcd") == ((0, 8), None, 0, 0)
    assert index.insert(index.root(b"key"), letters("ab"), 0, 0).findable, "the block itself may be inserted again"


@every_index
def test_an_open_block_is_found_up_to_its_fill(make: Make) -> None:
    index = make(4)
    cursor = insert(index, "abcd", [0])
    text = "abcdefgh"
    assert index.extend(cursor, letters(text), 4, 1, 1) and hit(index, text) == ((0,), 1, 1, 1)
    assert index.extend(cursor, letters(text), 4, 3, 1) and hit(index, text) == ((0,), 1, 3, 3)
    assert index.extend(cursor, letters(text), 4, 2, 1) and index.fill(1) == 3, "fewer tokens take nothing away"
    assert not index.extend(cursor, letters(text), 4, 2, 2) and index.fill(2) == 0, "another block has them"
    assert index.extend(cursor, letters("abcdeXY"), 4, 3, 2)
    assert hit(index, "abcdeXYZ") == ((0,), 2, 3, 3)
    assert index.insert(cursor, letters(text), 4, 1).findable and hit(index, text) == ((0, 1), None, 0, 0)
    assert index.fill(1) == 4


@every_index
def test_a_full_block_that_is_refused_loses_its_tail(make: Make) -> None:
    index = make(4)
    root = index.root(b"key")
    assert index.extend(root, letters("ab"), 0, 2, 0)
    assert index.insert(root, letters("abcd"), 0, 1).findable
    assert not index.insert(root, letters("abcd"), 0, 0).findable
    assert index.fill(0) == 0 and hit(index, "abX") == ((), 1, 2, 4)


@every_index
def test_the_head_that_ends_with_the_match_is_preferred(make: Make) -> None:
    index = make(8)
    for block, text in enumerate(["ab", "abc", "abcdX", "abcdefgh"]):
        if len(text) < 8:
            assert index.extend(index.root(b"key"), letters(text), 0, len(text), block)
        else:
            insert(index, text, [block])
    assert hit(index, "abZ") == ((), 0, 2, 2)
    assert hit(index, "abcZ") == ((), 1, 3, 3)
    assert hit(index, "abcdX") == ((), 2, 5, 5)
    assert hit(index, "abcd")[2] == 4 and hit(index, "abcd")[1] in (2, 3)
    assert hit(index, "aZ")[2] == 1


@every_index
def test_heads_are_counted_in_whole_tokens(make: Make) -> None:
    index = make(2)
    index.insert(index.root(b"key"), array("i", [0x01020304, 5]), 0, 0)
    index.insert(index.root(b"key"), array("i", [0x01020305, 5]), 0, 1)
    assert index.match(index.root(b"key"), array("i", [0x7F020304, 5]), 2).head is None, "three of a token's bytes are no token"
    assert index.match(index.root(b"key"), array("i", [0x01020305, 6]), 2).head == 1


@every_index
def test_a_gap_ends_the_hit_until_it_is_filled_again(make: Make) -> None:
    index = make(2)
    cursor = insert(index, "abcdefgh", [0, 1, 2, 3])
    index.forget(1)
    assert hit(index, "abcdefgh") == ((0,), None, 0, 0)
    assert hit(index, "abcX") == ((0,), None, 0, 0), "a gap has no head"
    assert hit(index, "abcdefgh", skip=2)[0] == (2, 3)
    match = index.match(index.root(b"key"), letters("abcdefgh"), 8)
    assert index.insert(match.cursor, letters("abcdefgh"), 2, 9).findable
    assert hit(index, "abcdefgh") == ((0, 9, 2, 3), None, 0, 0)
    assert index.insert(cursor, letters("abcdefghij"), 8, 4).findable, "the cursor behind the gap is good"
    assert hit(index, "abcdefghij")[0] == (0, 9, 2, 3, 4)


@every_index
def test_skipped_blocks_may_be_unknown(make: Make) -> None:
    index = make(2)
    match = index.match(index.root(b"key"), letters("abcdef"), 6, skip=2)
    assert match.blocks == () and match.head is None
    cursor, findable = index.insert(match.cursor, letters("abcdef"), 4, 5)
    assert findable and hit(index, "abcdef", skip=2) == ((5,), None, 0, 0)
    assert index.extend(cursor, letters("abcdefg"), 6, 1, 6)
    assert hit(index, "abcdefgh", skip=3) == ((), 6, 1, 1)
    assert hit(index, "abcdef") == NOTHING
    assert hit(index, "abcdef", limit=3, skip=2) == NOTHING


@every_index
def test_a_stale_cursor_is_rebuilt(make: Make) -> None:
    index = make(2)
    cursor = insert(index, "abcdef", [0, 1, 2])
    for block in (2, 1, 0):
        index.forget(block)
    insert(index, "abXYZW", [3, 4, 5])
    assert index.insert(cursor, letters("abcdefgh"), 6, 6).findable
    assert hit(index, "abcdefgh") == ((3,), None, 0, 0), "what was forgotten is a gap"
    assert hit(index, "abXYgh") == ((3, 4), None, 0, 0), "nothing of one chain is found in another"
    insert(index, "ab", [3])
    index.insert_all(index.root(b"key"), letters("abcdef"), 0, [0, 1, 2])
    assert hit(index, "abcdefgh")[0] == (3, 1, 2, 6)


@every_index
def test_a_cut_end_does_not_make_old_cursors_point_to_new_content(make: Make) -> None:
    index = make(1)
    cursor = insert(index, "abc", [0, 1, 2])
    index.forget(2)
    index.forget(1)
    insert(index, "axyz", [0, 3, 4, 5])
    assert index.insert(cursor, letters("abcd"), 3, 6).findable
    assert hit(index, "axyd")[0] == (0, 3, 4)
    assert hit(index, "abcd")[0] == (0,)


@every_index
def test_a_shortened_block_is_the_head_of_what_it_was(make: Make) -> None:
    index = make(4)
    insert(index, "abcdefghijkl", [0, 1, 2])
    index.shorten(1, 4)
    assert index.fill(1) == 4, "no more was asked away than it has"
    index.shorten(1, 2)
    assert index.fill(1) == 2 and hit(index, "abcdefghijkl") == ((0,), 1, 2, 2)
    insert(index, "abcdefgh", [0, 5])
    assert hit(index, "abcdefghijkl") == ((0, 5, 2), None, 0, 0)
    index.shorten(1, 0)
    assert index.fill(1) == 0 and hit(index, "abcdefX") == ((0,), 5, 2, 4)
    index.shorten(2, 1)
    assert hit(index, "abcdefghijkl") == ((0, 5), 2, 1, 1)
    index.shorten(77, 0)


@every_index
def test_a_shortened_block_that_repeats_another_is_not_findable(make: Make) -> None:
    index = make(4)
    root = index.root(b"key")
    assert index.extend(root, letters("ab"), 0, 2, 0)
    assert index.extend(root, letters("abc"), 0, 3, 1)
    index.shorten(1, 2)
    assert (index.fill(0), index.fill(1)) == (2, 0)


@both_indexes
def test_what_cannot_be_found_costs_nothing(make: Make) -> None:
    index = make(2)
    index.root(b"never used")
    insert(index, "abcdef", [0, 1, 2])
    insert(index, "abcdXY", [0, 1, 3])
    index.extend(insert(index, "ab", [0]), letters("abc"), 2, 1, 4)
    for block in (0, 1, 4, 3, 2):
        index.forget(block)
        index.check()
    index.forget(2)
    assert not index._roots and not index._found_in
    assert isinstance(index, RadixIndex) or not index._places


def lines_run(run: Callable[[], object]) -> int:
    """How many lines of the index's own code are executed: work counted, not timed."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return count


@both_indexes
def test_work_does_not_grow_with_siblings(make: Make) -> None:
    """100,000 blocks after one: eviction of the oldest first leaves no debris that a search would walk through, either."""
    rng = random.Random(3)
    stem = [rng.randrange(49000) for _ in range(16)]
    branches = [stem + [rng.randrange(49000) for _ in range(16)] for _ in range(100_000)]
    few, many = make(16), make(16)
    for index, count in ((few, 2), (many, len(branches))):
        cursor, _ = index.insert(index.root(b"key"), array("i", stem), 0, count)
        for block in range(count):
            assert index.insert(cursor, array("i", branches[block]), 16, block).findable
    other = array("i", stem + branches[1][16:20] + [1] * 12)

    def work(index: PrefixIndex) -> list[int]:
        match = index.match(index.root(b"key"), other, 32)
        assert match.head == 1 and match.head_tokens == 4
        return [
            lines_run(lambda: index.match(index.root(b"key"), other, 32)),
            lines_run(lambda: index.extend(match.cursor, other, 16, 9, 200_000)),
            lines_run(lambda: index.insert(match.cursor, other, 16, 200_000)),
            lines_run(lambda: index.forget(200_000)),
        ]

    least, most = work(few), work(many)
    # A search takes one step per byte of a token at most where nothing else tells the siblings apart.
    assert all(b <= a + 4 * 24 for a, b in zip(least, most, strict=True)), (least, most)
    visits, node = 0, many.match(many.root(b"key"), other, 32).cursor.heads
    while isinstance(node, Branch):
        visits, node = visits + 1, node.edges[other[16:].tobytes()[node.depth]]
    assert 1 <= visits <= 4


def test_a_trie_is_as_good_as_looking_at_every_leaf() -> None:
    rng = random.Random(5)
    for _ in range(300):
        kept: dict[bytes, Leaf] = {}
        trie: heads.Heads = None
        for block in range(rng.randrange(1, 25)):
            key = array("i", [rng.choice([0, 1, 256]) for _ in range(rng.randrange(1, 5))]).tobytes()
            if key in kept:
                trie = heads.remove(trie, kept.pop(key))
            else:
                kept[key] = Leaf(key, block)
                trie = heads.add(trie, kept[key])
            assert {id(leaf) for leaf in heads.leaves(trie)} == {id(leaf) for leaf in kept.values()}
            query = array("i", [rng.choice([0, 1, 256]) for _ in range(rng.randrange(0, 5))]).tobytes()
            common = {key: max(n for n in range(5) if n <= len(key) // 4 and key[: 4 * n] == query[: 4 * n]) for key in kept}
            best = max(common.values(), default=0)
            found = heads.longest(trie, query)
            assert (found[1] if found else 0) == best
            if found:
                assert common[found[0].tokens] == best
                assert (len(found[0].tokens) == best * 4) == (query[: best * 4] in kept)
            if query:
                assert heads.covers(trie, query) == any(key.startswith(query) for key in kept)


@pytest.mark.parametrize("bits", [8, 1])
def test_a_collision_is_a_miss_never_a_wrong_hit(bits: int) -> None:
    """Field case K01-05: 300 prompts of 64 tokens under a hash of a few bits."""
    mask, size = (1 << bits) - 1, 4
    index = HashIndex(size, hash_chunk=lambda key: hash(key) & mask)
    rng = random.Random(7)
    holds: dict[int, tuple[int, ...]] = {}  # block -> the whole prefix that it ends
    prompts = [array("i", [rng.randrange(3) for _ in range(64)]) for _ in range(300)]
    missed = hits = 0
    for number, prompt in enumerate(prompts):
        match = index.match(index.root(b"key"), prompt, 64)
        for i, block in enumerate(match.blocks):
            assert holds[block] == tuple(prompt[: (i + 1) * size])
        if match.head is not None:
            end = len(match.blocks) * size
            assert holds[match.head][: end + match.head_tokens] == tuple(prompt[: end + match.head_tokens])
            assert len(holds[match.head]) == end + match.head_fill
        hits += len(match.blocks)
        cursor = match.cursor
        for i in range(len(match.blocks), 15):
            block = number * 16 + i
            cursor, findable = index.insert(cursor, prompt, i * size, block)
            assert findable == (index.fill(block) == size)
            missed += not findable
            if findable:
                holds[block] = tuple(prompt[: (i + 1) * size])
        if index.extend(cursor, prompt, 60, 3, number * 16 + 15):
            holds[number * 16 + 15] = tuple(prompt[:63])
        if number % 3 == 0:
            index.forget(rng.choice(list(holds)))
        index.check()
    assert missed > 0, "a hash this short must collide, or nothing was tested"
    assert bits < 8 or hits > 0
    for block in holds:
        index.forget(block)
    index.check()
    assert not index._roots and not index._places


def test_hashes_differ_between_indexes_and_processes_where_pythons_do_not() -> None:
    """Field case K11-02: with PYTHONHASHSEED fixed, Python's own hash of bytes could be computed outside."""
    code = (
        "from array import array; from octavo.kv.hash_index import HashIndex\n"
        "for _ in range(2):\n"
        "    index = HashIndex(2); index.insert(index.root(b'key'), array('i', [1, 2]), 0, 0); print(*index._places)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True) for _ in range(2)
    ]
    keys = [key for run in runs for key in run.stdout.split()]
    assert len(set(keys)) == len(keys) == 4


def test_structured_changes_of_tokens_give_other_keys() -> None:
    """Field case K11-02: sums kept, tokens swapped, zeros put before, borders shifted; the tokens themselves are compared besides."""
    index = HashIndex(4)
    rng = random.Random(11)
    chunks: set[tuple[int, ...]] = set()
    for _ in range(2000):
        base = [rng.randrange(1000) for _ in range(4)]
        a, b = rng.randrange(1, 50), rng.randrange(1, 50)
        chunks |= {tuple(base), (base[0] + a, base[1] - b, *base[2:]), (base[1], base[0], *base[2:]), (0, *base[:3]), (*base[1:], 0)}
    for block, chunk in enumerate(sorted(chunks)):
        assert index.insert(index.root(b"key"), array("i", chunk), 0, block).findable
    assert len(index._places) == len(chunks) > 9000


def test_no_index_finds_nothing() -> None:
    index = NoIndex()
    assert index.insert_all(index.root(b"key"), letters("abcd"), 0, [0, 1]) == (None, [0, 1])
    assert not index.insert(None, letters("ab"), 0, 0).findable and not index.extend(None, letters("a"), 0, 1, 0)
    assert hit(index, "abcd") == NOTHING and index.fill(0) == 0
