"""The simplest prefix index that keeps the contract, to show that manager and scheduler are written to the contract."""

from collections.abc import Hashable, Sequence

from octavo.kv import PrefixIndex, PrefixMatch
from octavo.kv.prefix_index import Cursor, Insertion, Namespace


class PlainIndex(PrefixIndex):
    """Whole prefixes in a dict."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[tuple[Hashable, tuple[int, ...]], int] = {}

    def match(self, namespace: Namespace, tokens: Sequence[int], limit: int) -> PrefixMatch:
        found: list[int] = []
        while (end := (len(found) + 1) * self.block_size) <= min(limit, len(tokens)):
            block = self.blocks.get((namespace, tuple(tokens[:end])))
            if block is None:
                break
            found.append(block)
        length = len(found) * self.block_size
        return PrefixMatch(tuple(found), length, (namespace, tuple(tokens[:length])))

    def insert(self, cursor: Cursor, tokens: Sequence[int], start: int, block: int) -> Insertion:
        namespace, prefix = cursor  # type: ignore[misc]
        key = (namespace, prefix + tuple(tokens[start : start + self.block_size]))
        return Insertion(key, self.blocks.setdefault(key, block) == block)

    def forget(self, block: int) -> None:
        self.blocks = {key: other for key, other in self.blocks.items() if other != block}
