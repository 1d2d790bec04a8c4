"""Both indexes beside a plain dict, under random operations: the same hits after every step."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain_index import PlainIndex

from octavo.kv.hash_index import HashIndex
from octavo.kv.prefix_index import Cursor, IndexMatch
from octavo.kv.radix_index import RadixIndex

ROOTS = (b"one", b"other")
TOKENS = st.lists(st.integers(0, 1), max_size=14)


class Sequence:
    """What a manager knows of a chain that it writes: tokens, full blocks inserted, each index's cursor (it may go stale)."""

    def __init__(self, root: bytes, tokens: list[int], done: int, cursors: list[Cursor]) -> None:
        self.root, self.tokens, self.done, self.cursors = root, array("i", tokens), done, cursors
        self.open_block: int | None = None
        self.open_fill = 0


class IndexMachine(RuleBasedStateMachine):
    """Block ids are given out once more when they were forgotten, as a pool does it.  Two token ids, so that most prefixes meet."""

    @initialize(block_size=st.sampled_from([1, 2, 4, 8]))
    def make(self, block_size: int) -> None:
        self.size = block_size
        self.oracle = PlainIndex(block_size)
        self.indexes = [HashIndex(block_size), RadixIndex(block_size), self.oracle]
        self.sequences: list[Sequence] = []
        self.free = list(range(40))
        self.queries: list[tuple[bytes, array, int, int]] = []

    def everywhere(self, name: str, *arguments: object) -> list:
        return [getattr(index, name)(*arguments) for index in self.indexes]

    def compare(self, root: bytes, tokens: array, limit: int, skip: int) -> list[IndexMatch]:
        matches = [index.match(index.root(root), tokens, limit, skip) for index in self.indexes]
        hashed, radix, plain = matches
        told = [(match.blocks, match.head, match.head_tokens, match.head_fill) for match in (hashed, radix)]
        assert told[0] == told[1]
        assert (hashed.blocks, hashed.head_tokens) == (plain.blocks, plain.head_tokens)
        end = (skip + len(plain.blocks)) * self.size
        if plain.head is None:
            assert hashed.head is None and hashed.head_fill == 0
        else:
            upto = min(len(tokens), max(0, limit), end + self.size)
            choices = self.oracle.heads(root, tuple(tokens[:end]), tuple(tokens[end:upto]))
            best = max(choice[:2] for choice in choices)
            assert (*best, hashed.head) in choices and hashed.head_fill == self.oracle.fill(hashed.head)
        return matches

    @rule(root=st.sampled_from(ROOTS), tokens=TOKENS, skip=st.integers(0, 3), cut=st.integers(0, 3))
    def open(self, root: bytes, tokens: list[int], skip: int, cut: int) -> None:
        """A sequence begins with what a match found; the skipped blocks are somebody else's."""
        skip = min(skip, len(tokens) // self.size)
        limit = len(tokens) - cut
        matches = self.compare(root, array("i", tokens), limit, skip)
        if skip * self.size <= limit:
            self.sequences.append(Sequence(root, tokens, skip + len(matches[0].blocks), [match.cursor for match in matches]))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=5))
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        data.draw(st.sampled_from(self.sequences)).tokens.extend(tokens)

    @precondition(lambda self: self.sequences and self.free)
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        start = sequence.done * self.size
        if start + self.size > len(sequence.tokens):
            return
        block = self.free.pop() if sequence.open_block is None else sequence.open_block
        told = [
            index.insert(cursor, sequence.tokens, start, block) for index, cursor in zip(self.indexes, sequence.cursors, strict=True)
        ]
        sequence.cursors = [cursor for cursor, _ in told]
        assert len({findable for _, findable in told}) == 1
        sequence.done += 1
        sequence.open_block, sequence.open_fill = None, 0
        if not told[0].findable:
            self.free.append(block)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), most=st.integers(0, 4))
    def insert_all(self, data: st.DataObject, most: int) -> None:
        self.put_full(data.draw(st.sampled_from(self.sequences)), most)

    @precondition(lambda self: self.sequences and self.free)
    @rule(data=st.data(), more=st.integers(1, 5))
    def extend(self, data: st.DataObject, more: int) -> None:
        self.put_open(data.draw(st.sampled_from(self.sequences)), more)

    @precondition(lambda self: len(self.free) > 14)
    @rule(root=st.sampled_from(ROOTS), tokens=TOKENS, goes_on=st.booleans())
    def request(self, root: bytes, tokens: list[int], goes_on: bool) -> None:
        """What a whole request leaves: all full blocks and the tail."""
        self.open(root, tokens, 0, 0)
        sequence = self.sequences[-1]
        self.put_full(sequence, len(tokens))
        self.put_open(sequence, self.size)
        if not goes_on:
            self.close(len(self.sequences) - 1)

    def put_full(self, sequence: Sequence, most: int) -> None:
        count = min(len(sequence.tokens) // self.size - sequence.done, most, len(self.free))
        blocks = [self.free.pop() for _ in range(count)]
        if blocks and sequence.open_block is not None:
            self.free.append(blocks[0])
            blocks[0], sequence.open_block, sequence.open_fill = sequence.open_block, None, 0
        told = [
            index.insert_all(cursor, sequence.tokens, sequence.done * self.size, blocks)
            for index, cursor in zip(self.indexes, sequence.cursors, strict=True)
        ]
        sequence.cursors = [cursor for cursor, _ in told]
        assert told[0][1] == told[1][1] == told[2][1]
        sequence.done += count
        self.free += told[0][1]

    def put_open(self, sequence: Sequence, more: int) -> None:
        start = sequence.done * self.size
        fill = min(sequence.open_fill + more, len(sequence.tokens) - start, self.size - 1)
        if fill <= 0:
            return
        if sequence.open_block is None:
            sequence.open_block = self.free.pop()
        told = [
            index.extend(cursor, sequence.tokens, start, fill, sequence.open_block)
            for index, cursor in zip(self.indexes, sequence.cursors, strict=True)
        ]
        assert len(set(told)) == 1
        sequence.open_fill = max(fill, sequence.open_fill)

    @precondition(lambda self: self.oracle.entries)
    @rule(data=st.data(), count=st.integers(1, 5))
    def evict(self, data: st.DataObject, count: int) -> None:
        """Blocks of one root, those furthest from it first."""
        root = data.draw(st.sampled_from(ROOTS))
        entries = [(len(entry.before), block) for block, entry in self.oracle.entries.items() if entry.root == root]
        for _, block in sorted(entries, reverse=True)[:count]:
            self.everywhere("forget", block)
            self.let_go(block)

    @precondition(lambda self: self.oracle.entries)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.oracle.entries)))
        self.everywhere("forget", block)
        self.let_go(block)

    @precondition(lambda self: self.oracle.entries)
    @rule(data=st.data(), fill=st.integers(0, 7))
    def shorten(self, data: st.DataObject, fill: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.oracle.entries)))
        fill = min(fill, self.size - 1)
        self.everywhere("shorten", block, fill)
        if self.oracle.fill(block) == 0:
            self.let_go(block)

    def let_go(self, block: int) -> None:
        """Who wrote in it begins its open block anew; the number may serve again."""
        for sequence in self.sequences:
            if sequence.open_block == block:
                sequence.open_block, sequence.open_fill = None, 0
        self.free.insert(0, block)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """The tail of an ended sequence stays findable; its block is nobody's until it is forgotten."""
        self.close(data.draw(st.integers(0, len(self.sequences) - 1)))

    def close(self, number: int) -> None:
        sequence = self.sequences.pop(number)
        if sequence.open_block is not None and not self.oracle.fill(sequence.open_block):
            self.free.append(sequence.open_block)

    @rule(root=st.sampled_from(ROOTS), tokens=TOKENS, limit=st.integers(-1, 15), skip=st.integers(0, 4))
    def ask(self, root: bytes, tokens: list[int], limit: int, skip: int) -> None:
        self.compare(root, array("i", tokens), limit, skip)
        self.queries.append((root, array("i", tokens), limit, skip))

    @invariant()
    def equal_hits(self) -> None:
        if not hasattr(self, "indexes"):
            return
        self.everywhere("check")
        for block in range(40):
            assert len(set(self.everywhere("fill", block))) == 1
        for query in self.queries[-6:]:
            self.compare(*query)
        for sequence in self.sequences:
            self.compare(sequence.root, sequence.tokens, len(sequence.tokens), 0)

    def teardown(self) -> None:
        if hasattr(self, "indexes"):
            for block in range(40):
                self.everywhere("forget", block)
            self.everywhere("check")
            hashed, radix, _ = self.indexes
            assert not hashed._roots and not hashed._places and not radix._roots, "what can't be found costs nothing"


IndexMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestIndexes = IndexMachine.TestCase
