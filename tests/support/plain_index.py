"""The simplest prefix index that keeps the contract, a dict of what each block holds: an oracle for indexes and their users."""

from typing import NamedTuple

from octavo.kv.prefix_index import Cursor, IndexMatch, Insertion, PrefixIndex, Tokens


class Entry(NamedTuple):
    """Below which root, after which tokens a block can be found, and by which tokens of its own."""

    root: bytes
    before: tuple[int, ...]
    tokens: tuple[int, ...]


class PlainIndex(PrefixIndex):
    """Whole prefixes, searched from end to end.  A cursor is the root's digest: the rest is in the tokens that come with it."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.entries: dict[int, Entry] = {}

    def root(self, digest: bytes) -> Cursor:
        return digest

    def match(self, root: Cursor, tokens: Tokens, limit: int, skip: int = 0) -> IndexMatch:
        prefix, size = tuple(tokens[: max(0, limit)]), self.block_size
        if skip * size > len(prefix):
            return IndexMatch((), root)
        full = {(entry.before, entry.tokens): block for block, entry in self.entries.items() if entry.root == root}
        blocks: list[int] = []
        end = skip * size
        while end + size <= len(prefix) and (block := full.get((prefix[:end], prefix[end : end + size]))) is not None:
            blocks.append(block)
            end += size
        common, _, head = max(self.heads(root, prefix[:end], prefix[end : end + size]), default=(0, False, None))
        if head is None:
            return IndexMatch(tuple(blocks), root)
        return IndexMatch(tuple(blocks), root, head, common, self.fill(head))

    def heads(self, root: bytes, before: tuple[int, ...], tokens: tuple[int, ...]) -> list[tuple[int, bool, int]]:
        """(tokens in common, whether the entry ends with them, block) of what begins as `tokens` do."""
        found = []
        for block, entry in self.entries.items():
            if entry.root == root and entry.before == before:
                pairs = zip(entry.tokens, tokens, strict=False)
                common = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(entry.tokens), len(tokens)))
                if common:
                    found.append((common, common == len(entry.tokens), block))
        return found

    def insert(self, cursor: Cursor, tokens: Tokens, start: int, block: int) -> Insertion:
        entry = Entry(cursor, tuple(tokens[:start]), tuple(tokens[start : start + self.block_size]))
        others = [other for other, there in self.entries.items() if there == entry and other != block]
        self.entries.pop(block, None)
        if not others:
            self.entries[block] = entry
        return Insertion(cursor, not others)

    def extend(self, cursor: Cursor, tokens: Tokens, start: int, fill: int, block: int) -> bool:
        entry = Entry(cursor, tuple(tokens[:start]), tuple(tokens[start : start + fill]))
        have = self.holders(entry)
        if not have:
            self.entries[block] = entry
        return not have or block in have

    def holders(self, entry: Entry) -> list[int]:
        """Blocks that are findable by all of these tokens, and perhaps more."""
        return [
            block
            for block, there in self.entries.items()
            if there[:2] == entry[:2] and there.tokens[: len(entry.tokens)] == entry.tokens
        ]

    def shorten(self, block: int, fill: int) -> None:
        if self.fill(block) <= fill:
            return
        root, before, tokens = self.entries.pop(block)
        entry = Entry(root, before, tokens[:fill])
        if fill and not self.holders(entry):
            self.entries[block] = entry

    def forget(self, block: int) -> None:
        self.entries.pop(block, None)

    def fill(self, block: int) -> int:
        return len(self.entries[block].tokens) if block in self.entries else 0

    def check(self) -> None:
        assert len(set(self.entries.values())) == len(self.entries), "two blocks can be found by the same tokens"
