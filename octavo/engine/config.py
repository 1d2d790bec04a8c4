"""`EngineConfig`: every setting of the engine, with vLLM's names where vLLM has the setting."""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from octavo.core.errors import ConfigError
from octavo.spec.memory import BLOCK_SIZES, SMALL_BLOCK_SIZES
from octavo.spec.model import LoadFormat


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; checked on construction (raises ConfigError), never mutated.

    model: a name ("smollm2-135m"), a folder of safetensors, a GGUF file, or a hub id.
    dtype: of weights and activations; "auto" is bfloat16 where the CPU has instructions for it, else float32.
    kv_cache_dtype: how K and V are stored; "auto" follows dtype.
    block_size: tokens of a block (16, 32, 64 or 128; 1 to 8 with kernels="reference" only).
    num_blocks: blocks of the pool.  None: as many as kv_cache_memory_bytes holds, or else memory_utilization of what is free.
    memory_utilization: the share of min(available memory, the control group's room), measured after the weights are loaded and
        the workspaces counted, that the pool may take.
    max_model_len: tokens of a sequence, prompt and output; None: what the model was made for.
    max_num_seqs: sequences that run at once.  max_num_batched_tokens: tokens computed in one step.
    target_step_seconds: while streams run, a prompt's chunk is cut so that a step takes about this long.
    enable_prefix_caching: keep what was computed, and read equal prefixes from memory.
    prefix_index: how they are found, "hash" or "radix": the same hits either way (see docs/CACHE.md).
    eviction: which cached block gives way first: "lru", the least recently used, or "cost", the one that is cheapest to compute again.
    cache_quotas: tenant -> tokens of it that may stay cached when no request holds them.
    default_cache_quota: the same for tenants that are not named there (None: no bound).
    pin_share: pins and publications together cover at most this share of the pool.
    kv_layout, reserve: "paged", or a contiguous region per request of the size that `reserve` says (a baseline to compare with).
    batching: "continuous", or "static": a whole batch runs to its end (a baseline to compare with).
    threads: of the compute kernels; None: the CPUs this process may use.
    kernels: "auto", "reference", or a compiled path by name ("avx512_bf16", "avx512", "avx2", "portable").
    load_format: "auto", "safetensors" or "gguf" to insist on one, or "dummy" for random weights of the config's shape.
    seed: for dummy weights, and for the seeds of requests that bring none.
    """

    model: str
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    memory_utilization: float = 0.5
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    target_step_seconds: float = 0.1
    enable_prefix_caching: bool = True
    prefix_index: Literal["hash", "radix"] = "hash"
    eviction: Literal["lru", "cost"] = "lru"
    cache_quotas: Mapping[str, int] | None = None
    default_cache_quota: int | None = None
    pin_share: float = 0.5
    kv_layout: Literal["paged", "reserved"] = "paged"
    reserve: Literal["max", "pow2", "oracle"] = "max"
    batching: Literal["continuous", "static"] = "continuous"
    threads: int | None = None
    kernels: Literal["auto", "reference", "avx512_bf16", "avx512", "avx2", "portable"] = "auto"
    load_format: LoadFormat = "auto"
    revision: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _choose("block_size", self.block_size, BLOCK_SIZES + (SMALL_BLOCK_SIZES if self.kernels == "reference" else ()))
        for name in ("num_blocks", "kv_cache_memory_bytes", "max_model_len", "threads"):
            if (value := getattr(self, name)) is not None:
                _positive(name, value)
        _positive("max_num_seqs", self.max_num_seqs)
        _positive("max_num_batched_tokens", self.max_num_batched_tokens)
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError(
                f"num_blocks={self.num_blocks} and kv_cache_memory_bytes={self.kv_cache_memory_bytes} both size the pool; give one"
            )
        for name in ("memory_utilization", "target_step_seconds", "pin_share"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int | float):
                raise ConfigError(f"{name}={value!r} must be a number")
        if not 0.0 < self.memory_utilization <= 0.95:
            raise ConfigError(f"memory_utilization={self.memory_utilization} must be above 0 and at most 0.95")
        if not 0.0 < self.target_step_seconds < float("inf"):
            raise ConfigError(f"target_step_seconds={self.target_step_seconds} must be above 0")
        if not 0.0 <= self.pin_share <= 1.0:
            raise ConfigError(f"pin_share={self.pin_share} must be between 0 and 1")
        if not isinstance(self.enable_prefix_caching, bool):
            raise ConfigError(f"enable_prefix_caching={self.enable_prefix_caching!r} must be True or False")
        _check_quotas(self.cache_quotas, self.default_cache_quota)
        _choose("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        _choose("kv_cache_dtype", self.kv_cache_dtype, ("auto", "float32", "bfloat16", "float16"))
        _choose("prefix_index", self.prefix_index, ("hash", "radix"))
        _choose("eviction", self.eviction, ("lru", "cost"))
        _choose("kv_layout", self.kv_layout, ("paged", "reserved"))
        _choose("reserve", self.reserve, ("max", "pow2", "oracle"))
        _choose("batching", self.batching, ("continuous", "static"))
        _choose("kernels", self.kernels, ("auto", "reference", "avx512_bf16", "avx512", "avx2", "portable"))
        _choose("load_format", self.load_format, get_args(LoadFormat))


def make_config(model: object, settings: Mapping[str, Any]) -> EngineConfig:
    """An EngineConfig from keyword arguments.  Raises ConfigError for a name that is no setting, with the nearest that is."""
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    for name in settings:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            raise ConfigError(
                f"there is no setting {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}")
            )
    return EngineConfig(model=str(model), **settings)


def _check_quotas(quotas: object, default: object) -> None:
    if quotas is not None and not isinstance(quotas, Mapping):
        raise ConfigError(f"cache_quotas={quotas!r} must map tenants to numbers of tokens")
    for name, value in {**({} if quotas is None else quotas), **({} if default is None else {"default_cache_quota": default})}.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"the cache quota of {name!r} is {value!r}; it must be a whole number of tokens, 0 or more")


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number of 1 or more")


def _choose(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
