"""`Owner`: whose the content of a block is.  `Contents`: what is known of the content of each block, beside where the index has it."""

from collections.abc import Iterable
from weakref import WeakValueDictionary

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.kv.prefix_index import Tokens
from octavo.kv.quotas import Account, Accounts


class Owner:
    """One CacheKey, as leases and blocks refer to it.

    account: of its tenant, if that has a quota.  publication: the name, when the key is a published one's.
    """

    __slots__ = ("__weakref__", "account", "key", "publication", "seed")

    def __init__(self, key: CacheKey, account: Account | None) -> None:
        self.key, self.account = key, account
        self.publication = key.namespace.name if isinstance(key.namespace, PublishedNamespace) else None
        self.seed = hash(key.digest)


class Owners:
    """Each key's one Owner, as long as a lease or a block refers to it."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._owners: WeakValueDictionary[bytes, Owner] = WeakValueDictionary()

    def of(self, key: CacheKey) -> Owner:
        owner = self._owners.get(key.digest)
        if owner is None:
            namespace = key.namespace  # of what an operator published, no tenant's quota pays
            owner = Owner(key, self._accounts.of(namespace.tenant) if isinstance(namespace, TenantNamespace) else None)
            self._owners[key.digest] = owner
        return owner


class Contents:
    """By block: whose its content is, and a number that stands for all tokens from the sequence's first to the block's last.

    Such a number is only ever compared inside one owner's memory, to say why something was missed: by it nothing is found.

    owners, chains: may be stale for a block that nothing finds.
    prompt_ends: for blocks in which a prompt ended before the block did: the same number for the tokens up to there.
    """

    def __init__(self, num_blocks: int) -> None:
        self.owners: list[Owner | None] = [None] * num_blocks
        self.chains = [0] * num_blocks
        self.prompt_ends: dict[int, int] = {}

    def ghosts(self, blocks: Iterable[int], seed: int) -> list[int]:
        """The numbers by which content of `blocks` may be asked for once it is gone, mixed with their owner's seed.

        Mutates: of each block, the end of a prompt is given once.
        """
        chains, ends = self.chains, self.prompt_ends
        if not ends:
            return [chains[block] ^ seed for block in blocks]
        ghosts = []
        for block in blocks:
            ghosts.append(chains[block] ^ seed)
            if block in ends:
                ghosts.append(ends.pop(block) ^ seed)
        return ghosts


def chained(before: int, tokens: Tokens, start: int, end: int) -> int:
    """The number of the chain that `tokens[start:end]` continues, `before` standing for all tokens before (0: none)."""
    return hash((before, tokens[start:end].tobytes()))
