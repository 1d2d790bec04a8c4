"""`CacheKey`: everything that can change a K or V value, plus who may see it."""

import hashlib
import math
import struct
from dataclasses import dataclass, field, fields

from octavo.core.errors import InvariantError


@dataclass(frozen=True, slots=True)
class TenantNamespace:
    """What one tenant computed, kept apart further by a salt of its choice."""

    tenant: str = "default"
    salt: str = ""


@dataclass(frozen=True, slots=True)
class PublishedNamespace:
    """A prefix that the operator published under a name."""

    name: str


Namespace = TenantNamespace | PublishedNamespace

# What a field holds: a type for that very type, (a, b) for a pair, [a] for a tuple of any length; a string where nothing is said.
_SHAPES: dict[str, object] = {"adapter_scale": float, "media": [(str, int)], "numerics": [(str, str)]}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """Memory is reused only under an equal key (law 3).  Made once per request; every index and every tier uses the same.

    weights, revision: digest of the weights as loaded, and the revision that they were asked for by.
    compute_dtype, kv_dtype, kv_layout: how K and V are computed and stored.
    positions: the position encoding's parameters, fixed at load.
    tokenizer, chat_template: digests; a template sent with a request changes the second.
    adapter, adapter_scale: digest and scale of the adapter in use ("" and 0.0: none).
    media: (digest, position) of each picture or sound in the prompt.
    numerics: (name, version) of whatever decides the bits: kernels, instruction path, libraries.
    digest: 256 bits over all of the above, equal for equal keys and only for them: a field goes in with its name, type and length.

    Raises InvariantError for a value that would blur that: one of another type (True == 1 == 1.0, yet each has its own spelling) or
    a scale that isn't finite (NaN differs from itself).  A scale of -0.0 becomes 0.0, which it equals.
    """

    weights: str = ""
    revision: str = ""
    compute_dtype: str = ""
    kv_dtype: str = ""
    kv_layout: str = ""
    positions: str = ""
    tokenizer: str = ""
    chat_template: str = ""
    adapter: str = ""
    adapter_scale: float = 0.0
    media: tuple[tuple[str, int], ...] = ()
    numerics: tuple[tuple[str, str], ...] = ()
    namespace: Namespace = TenantNamespace()
    digest: bytes = field(init=False, repr=False, compare=False, default=b"")

    def __post_init__(self) -> None:
        parts = [_spelled(name, str) + _spelled(getattr(self, name), _SHAPES.get(name, str), name) for name in _PLAIN]
        parts.append(_spelled_namespace(self.namespace))
        if self.adapter_scale == 0.0:
            object.__setattr__(self, "adapter_scale", 0.0)
        object.__setattr__(self, "digest", hashlib.blake2b(b"".join(parts), digest_size=32).digest())


_PLAIN = tuple(one.name for one in fields(CacheKey) if one.init and one.name != "namespace")


def _spelled_namespace(namespace: object) -> bytes:
    """Tagged by its kind, so that no text of a client's can reach a published prefix."""
    if type(namespace) is TenantNamespace:
        return b"T" + _spelled(namespace.tenant, str, "tenant") + _spelled(namespace.salt, str, "salt")
    if type(namespace) is PublishedNamespace:
        return b"P" + _spelled(namespace.name, str, "name of a published prefix")
    raise InvariantError(f"cache key: namespace={namespace!r} is neither a tenant's nor a published prefix's")


def _spelled(value: object, shape: object, name: str = "") -> bytes:
    """Type, length, content: injective, and equal for equal values of one shape.  Lone surrogates are spelled as they are."""
    if shape is str and type(value) is str:
        body = b"s", value.encode("utf-8", "surrogatepass")
    elif shape is int and type(value) is int:
        body = b"i", b"%x" % value
    elif shape is float and type(value) is float and math.isfinite(value):
        body = b"f", struct.pack("<d", value + 0.0)  # -0.0 + 0.0 is 0.0
    elif isinstance(shape, list) and type(value) is tuple:
        body = b"t", b"".join(_spelled(item, shape[0], name) for item in value)
    elif isinstance(shape, tuple) and type(value) is tuple and len(value) == len(shape):
        body = b"t", b"".join(_spelled(item, kind, name) for item, kind in zip(value, shape, strict=True))
    else:
        raise InvariantError(f"cache key: {name}={value!r} has no place there")
    return body[0] + struct.pack("<Q", len(body[1])) + body[1]
