"""`Publications`: prefixes that an operator lets several tenants read."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.core.errors import InvalidRequestError
from octavo.kv.prefix_index import Tokens


@dataclass(slots=True, eq=False)
class Publication:
    """key: whose namespace is PublishedNamespace(name).  tokens: whole blocks.  tenants: None: all may read.

    blocks: those that hold its content now.
    """

    name: str
    key: CacheKey
    tokens: Tokens
    num_blocks: int
    tenants: frozenset[str] | None
    blocks: set[int] = field(default_factory=set)

    def covers(self, tokens: Tokens, num_blocks: int, block_size: int) -> bool:
        """Whether its first `num_blocks` blocks are all there is of it there, and hold what `tokens` begins with."""
        end = num_blocks * block_size
        return num_blocks <= self.num_blocks and self.tokens[:end] == tokens[:end]


class Publications:
    """By name, by block, and by first block, so that a prompt is compared with those only that begin as it does."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._by_name: dict[str, Publication] = {}
        self._by_start: dict[bytes, list[Publication]] = {}
        self._by_block: dict[int, Publication] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def num_blocks(self) -> int:
        """Blocks that all of them cover together, computed or not."""
        return sum(publication.num_blocks for publication in self._by_name.values())

    def get(self, name: str) -> Publication | None:
        return self._by_name.get(name)

    def checked(self, name: str, key: CacheKey, tokens: Tokens, tenants: frozenset[str] | None) -> Publication:
        """What `add` takes.  Raises InvalidRequestError for a name in use, a key of another namespace, or less than one block."""
        size = self._block_size
        if name in self._by_name:
            raise InvalidRequestError(f"{name!r} is published already; unpublish it first")
        if key.namespace != PublishedNamespace(name):
            raise InvalidRequestError(
                f"the publication {name!r} needs a key with the namespace PublishedNamespace({name!r}), not {key.namespace}"
            )
        num_blocks = len(tokens) // size
        if not num_blocks:
            raise InvalidRequestError(
                f"{len(tokens)} tokens are less than a block of {size}, and published prefixes are read by whole blocks; "
                "publish a longer one, or lower block_size"
            )
        return Publication(name, key, tokens[: num_blocks * size], num_blocks, tenants)

    def add(self, publication: Publication) -> None:
        self._by_name[publication.name] = publication
        self._by_start.setdefault(self._start(publication.tokens), []).append(publication)

    def remove(self, name: str) -> Publication | None:
        publication = self._by_name.pop(name, None)
        if publication is not None:
            start = self._start(publication.tokens)
            self._by_start[start].remove(publication)
            if not self._by_start[start]:
                del self._by_start[start]
            for block in publication.blocks:
                del self._by_block[block]
        return publication

    def hold(self, publication: Publication, block: int) -> None:
        """`block` holds a part of its content now."""
        publication.blocks.add(block)
        self._by_block[block] = publication

    def lose(self, block: int) -> None:
        """The content of `block` is gone."""
        publication = self._by_block.pop(block, None)
        if publication is not None:
            publication.blocks.remove(block)

    def listed(self, key: CacheKey, tokens: Tokens) -> Iterator[Publication]:
        """Those that begin as `tokens` do and that the key's tenant may read, whatever else is in their keys; the oldest first."""
        if self._by_start and isinstance(key.namespace, TenantNamespace) and len(tokens) >= self._block_size:
            for publication in self._by_start.get(self._start(tokens), ()):
                if publication.tenants is None or key.namespace.tenant in publication.tenants:
                    yield publication

    def _start(self, tokens: Tokens) -> bytes:
        return tokens[: self._block_size].tobytes()


_COMPARED = tuple(one.name for one in fields(CacheKey) if one.init and one.name != "namespace")


def differing_field(key: CacheKey, other: CacheKey) -> str | None:
    """The first field in which two keys differ, namespaces aside; None when there is none."""
    return next((name for name in _COMPARED if getattr(key, name) != getattr(other, name)), None)
