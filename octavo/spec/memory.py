"""`MemorySpec`: the bytes of a token, a page and a block, derived from layer shapes.

A *page* holds 16 tokens of every layer: per layer first K, then V, each `[num_kv_heads, 16 * head_dim]` elements.  A block is
`block_size / 16` pages side by side (a smaller block is one short page), so that its size is the allocator's choice and changes
neither the bytes of a token nor what a kernel does with them.
"""

from dataclasses import dataclass

from octavo.core.errors import ConfigError

PAGE_TOKENS = 16
BLOCK_SIZES = (16, 32, 64, 128)  # for the compiled kernels; the reference kernels also take the small ones
SMALL_BLOCK_SIZES = (1, 2, 4, 8)
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class AttentionLayerSpec:
    """One attention layer's share of a token: `num_kv_heads` K and V vectors of `head_dim` elements.

    window: positions that a query sees, its own included (None: all of them).
    """

    num_kv_heads: int
    head_dim: int
    window: int | None = None

    def bytes_per_token(self, kv_dtype: str) -> int:
        return 2 * self.num_kv_heads * self.head_dim * DTYPE_BYTES[kv_dtype]


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """A model's memory per token and per block.  kv_dtype: how K and V are stored ("float32", "bfloat16", "float16")."""

    layers: tuple[AttentionLayerSpec, ...]
    kv_dtype: str
    block_size: int

    def __post_init__(self) -> None:
        if self.kv_dtype not in DTYPE_BYTES:
            raise ConfigError(f"kv dtype {self.kv_dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if self.block_size not in SMALL_BLOCK_SIZES + BLOCK_SIZES:
            raise ConfigError(f"block_size={self.block_size} is not one of {SMALL_BLOCK_SIZES + BLOCK_SIZES}")

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers: 2 x layers x kv_heads x head_dim x element bytes."""
        return sum(layer.bytes_per_token(self.kv_dtype) for layer in self.layers)

    @property
    def page_tokens(self) -> int:
        return min(PAGE_TOKENS, self.block_size)

    @property
    def page_bytes(self) -> int:
        return self.bytes_per_token * self.page_tokens

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.block_size

    def layer_offset(self, layer: int) -> int:
        """Bytes from the start of a page to this layer's K."""
        return sum(spec.bytes_per_token(self.kv_dtype) for spec in self.layers[:layer]) * self.page_tokens

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
