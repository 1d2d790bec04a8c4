"""Quotas: how many blocks of one tenant may stay cached when nobody holds them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

from octavo.core.errors import ConfigError, InvariantError
from octavo.kv.eviction import EvictionOrder


class Account:
    """One tenant's blocks at rest, the oldest first, and how many there may be."""

    __slots__ = ("__weakref__", "quota", "resting")

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.resting: OrderedDict[int, None] = OrderedDict()


class Accounts:
    """Each tenant's one account, as long as an owner refers to it.

    quotas: by tenant.  default_quota: of all others; None: no bound.  Raises ConfigError for a negative one.
    """

    def __init__(self, quotas: Mapping[str, int] | None, default_quota: int | None) -> None:
        self._quotas = dict(quotas or {})
        self._default = default_quota
        self._accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()
        for name, quota in [*((repr(tenant), quota) for tenant, quota in self._quotas.items()), ("any other tenant", default_quota)]:
            if quota is not None and quota < 0:
                raise ConfigError(f"the quota of {name} is {quota} blocks; it must be 0 or more (leave it out for no bound)")

    @property
    def are_kept(self) -> bool:
        return bool(self._quotas) or self._default is not None

    def of(self, tenant: str) -> Account | None:
        quota = self._quotas.get(tenant, self._default)
        if quota is None:
            return None
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(quota)
        return account


class QuotaOrder(EvictionOrder):
    """An eviction order that also knows the order inside each account, and which accounts hold too much.  O(1) more per block.

    account_of(block): who pays for a block at rest; None: nobody.
    """

    def __init__(self, order: EvictionOrder, account_of: Callable[[int], Account | None]) -> None:
        self._order = order
        self._account_of = account_of
        self._over: dict[Account, None] = {}

    def overdrawn(self) -> int | None:
        """The oldest block at rest of an account that holds more than its quota; None when no account does."""
        while self._over:
            account = next(iter(self._over))
            if len(account.resting) > account.quota:
                return next(iter(account.resting))
            del self._over[account]
        return None

    def check(self) -> None:
        """Raise InvariantError when an account contradicts the order, or holds more than its quota.  O(blocks at rest)."""
        resting: dict[Account, set[int]] = {}
        for block in self._order:
            if (account := self._account_of(block)) is not None:
                resting.setdefault(account, set()).add(block)
        for account, blocks in resting.items():
            if blocks != set(account.resting) or len(blocks) > account.quota:
                raise InvariantError(
                    f"{len(blocks)} blocks of a tenant rest, {len(account.resting)} are counted, {account.quota} may be"
                )

    def add(self, block: int) -> None:
        self._order.add(block)
        self._charge(block)

    def rest(self, table: Sequence[int], resting: Sequence[int]) -> None:
        self._order.rest(table, resting)
        for block in resting:
            self._charge(block)

    def discard(self, block: int) -> None:
        self._order.discard(block)
        self._relieve(block)

    def pop(self) -> int:
        block = self._order.pop()
        self._relieve(block)
        return block

    def reuse(self, blocks: Sequence[int]) -> None:
        self._order.reuse(blocks)

    def renew(self, blocks: Sequence[int]) -> None:
        self._order.renew(blocks)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __contains__(self, block: object) -> bool:
        return block in self._order

    def _charge(self, block: int) -> None:
        account = self._account_of(block)
        if account is not None:
            account.resting[block] = None
            if len(account.resting) > account.quota:
                self._over[account] = None

    def _relieve(self, block: int) -> None:
        account = self._account_of(block)
        if account is not None:
            account.resting.pop(block, None)
