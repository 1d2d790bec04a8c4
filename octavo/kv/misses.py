"""`MissMemory`: enough of what was evicted, and of the keys in use, to say why something was not found."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from octavo.core.cache_key import CacheKey, Namespace

# Ghosts of evicted blocks per namespace; about 130 bytes each.
MAX_GHOSTS = 4096
MAX_NAMESPACES = 1024
# Keys per namespace among which one is looked for that differs in a field only.
MAX_KEYS = 8


class _Remembered:
    """One namespace's part.  has_forgotten: something that was evicted from it may be unknown by now."""

    __slots__ = ("ghosts", "has_forgotten", "keys")

    def __init__(self, has_forgotten: bool) -> None:
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.keys: OrderedDict[bytes, CacheKey] = OrderedDict()
        self.has_forgotten = has_forgotten


class MissMemory:
    """Bounded per namespace and in the number of namespaces; a namespace is asked about itself alone.

    A ghost (the name is from Megiddo and Modha's ARC, FAST 2003) is the number of an evicted block's chain, mixed with its key's.
    """

    def __init__(self, max_ghosts: int = MAX_GHOSTS, max_namespaces: int = MAX_NAMESPACES) -> None:
        self._max_ghosts, self._max_namespaces = max_ghosts, max_namespaces
        self._namespaces: OrderedDict[Namespace, _Remembered] = OrderedDict()
        self._has_forgotten = False

    def note_key(self, key: CacheKey) -> None:
        """Something is computed under `key`."""
        keys = self._of(key.namespace).keys
        keys[key.digest] = key
        keys.move_to_end(key.digest)
        if len(keys) > MAX_KEYS:
            keys.popitem(last=False)

    def evicted(self, namespace: Namespace, ghosts: Iterable[int]) -> None:
        remembered = self._of(namespace)
        known = remembered.ghosts
        for ghost in ghosts:
            known[ghost] = None
            known.move_to_end(ghost)
        while len(known) > self._max_ghosts:
            known.popitem(last=False)
            remembered.has_forgotten = True

    def forget(self, namespace: Namespace) -> None:
        """Nobody will ask about it again."""
        self._namespaces.pop(namespace, None)

    def was_evicted(self, namespace: Namespace, ghosts: Iterable[int]) -> bool:
        """Whether one of `ghosts` is known.  Does not mutate."""
        remembered = self._namespaces.get(namespace)
        return remembered is not None and not remembered.ghosts.keys().isdisjoint(ghosts)

    def may_have_forgotten(self, namespace: Namespace) -> bool:
        remembered = self._namespaces.get(namespace)
        return self._has_forgotten if remembered is None else remembered.has_forgotten

    def other_keys(self, key: CacheKey) -> Iterator[CacheKey]:
        """The last few other keys of its namespace, the latest first."""
        remembered = self._namespaces.get(key.namespace)
        if remembered is not None:
            yield from (other for digest, other in reversed(remembered.keys.items()) if digest != key.digest)

    def _of(self, namespace: Namespace) -> _Remembered:
        remembered = self._namespaces.get(namespace)
        if remembered is None:
            remembered = self._namespaces[namespace] = _Remembered(self._has_forgotten)
            if len(self._namespaces) > self._max_namespaces:
                self._namespaces.popitem(last=False)
                self._has_forgotten = True
        else:
            self._namespaces.move_to_end(namespace)
        return remembered
