"""What callers say of prefixes that are to be published or pinned, checked before anything happens."""

import math
from collections.abc import Sequence, Set
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.engine.inputs import MAX_NAMESPACE_CHARS, InputProcessor, PromptInput, check_text_option

# Computes a prompt, and one token that nobody asked for.
COMPUTE_ONLY = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def publication_request(inputs: InputProcessor, prefix: PromptInput, name: Any) -> Request:
    """The request that computes what is published under `name`.  Raises InvalidRequestError."""
    return inputs.request(prefix, COMPUTE_ONLY, published=checked_name(name))


def pin_request(inputs: InputProcessor, prefix: PromptInput, name: Any, ttl: Any, tenant: str, cache_salt: str) -> Request:
    """The request that computes what memory lacks of a prefix to be pinned.  Raises InvalidRequestError."""
    checked_name(name)
    if ttl is not None:
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or math.isnan(ttl):
            raise InvalidRequestError(f"ttl={ttl!r} must be a number of seconds, or None for no end")
        if ttl <= 0:
            raise InvalidRequestError(f"ttl={ttl} would end the pin at once; give seconds above 0, or None for no end")
    return inputs.request(prefix, COMPUTE_ONLY, tenant=tenant, cache_salt=cache_salt)


def checked_name(name: Any) -> str:
    """The name of a publication or a pin.  Raises InvalidRequestError."""
    check_text_option("name", name)
    if not 1 <= len(name) <= MAX_NAMESPACE_CHARS:
        raise InvalidRequestError(f"name has {len(name)} characters; it must have 1 to {MAX_NAMESPACE_CHARS}")
    return str(name)


def checked_tenants(tenants: Any) -> frozenset[str] | None:
    """Who may read a publication; None: everybody.  Raises InvalidRequestError."""
    if tenants is None or (isinstance(tenants, str) and tenants == "all"):
        return None
    if isinstance(tenants, str | bytes) or not isinstance(tenants, Sequence | Set):
        raise InvalidRequestError(f"tenants={tenants!r} must be a list of tenants, or 'all' (or None) for everybody")
    if not tenants:
        raise InvalidRequestError("tenants is empty: nobody could read the publication; name some, or leave it out for everybody")
    for tenant in tenants:
        check_text_option("tenant", tenant)
    return frozenset(tenants)
