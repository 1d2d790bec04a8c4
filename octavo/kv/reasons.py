"""Why a prefix was not found any further: looked up once, at the first block that is missing."""

from octavo.core.cache_key import CacheKey
from octavo.kv.lease import PrefixMatch
from octavo.kv.manager import Miss
from octavo.kv.misses import MissMemory
from octavo.kv.owners import Contents, chained
from octavo.kv.prefix_index import PrefixIndex, Tokens
from octavo.kv.publications import Publication, Publications, differing_field


def explain(
    key: CacheKey,
    tokens: Tokens,
    match: PrefixMatch,
    index: PrefixIndex,
    block_size: int,
    contents: Contents,
    misses: MissMemory,
    publications: Publications,
) -> Miss:
    """As `KVCacheManager.why_missed`.  Of the memory of others nothing is looked at, so nothing of it can show (law 3).

    What was evicted is known by whole blocks and by where sequences and prompts ended; shorter beginnings of it are not.
    """
    if match.num_tokens >= len(tokens):
        return Miss(None)
    if match.head_use == "not worth":
        return Miss("below the copy's worth")
    if match.head_use == "no room":
        return Miss("no room to copy")
    if match.num_tokens >= match.limit:
        return Miss("prompt logprobs asked")

    place = len(match.blocks)
    start, end = place * block_size, min((place + 1) * block_size, len(tokens))
    readable = [one for one in publications.listed(key, tokens) if one.covers(tokens, place + 1, block_size)]
    before = contents.chains[match.blocks[-1]] if place else 0
    # What is longer than the head that was found would have been of use.
    chains = [chained(before, tokens, start, stop) for stop in range(start + match.head_tokens + 1, end + 1)]
    if misses.was_evicted(key.namespace, [chain ^ hash(key.digest) for chain in chains]):
        return Miss("evicted")
    same, others = _by_key(key, readable)
    for publication in same:
        if misses.was_evicted(publication.key.namespace, [chains[-1] ^ hash(publication.key.digest)]):
            return Miss("evicted")

    for other in misses.other_keys(key):
        found = index.match(index.root(other.digest), tokens, match.limit, place)
        if found.blocks or found.head_tokens > match.head_tokens:
            return Miss("key differs", differing_field(key, other))
    for publication in others:
        if index.match(index.root(publication.key.digest), tokens, min(match.limit, end), place).blocks:
            return Miss("key differs", differing_field(key, publication.key))

    asked = [key.namespace, *(publication.key.namespace for publication in same)]
    return Miss("unknown" if any(map(misses.may_have_forgotten, asked)) else "no match")


def _by_key(key: CacheKey, publications: list[Publication]) -> tuple[list[Publication], list[Publication]]:
    """Those under the same key, namespaces aside, and the others."""
    same = [publication for publication in publications if differing_field(publication.key, key) is None]
    return same, [publication for publication in publications if publication not in same]
