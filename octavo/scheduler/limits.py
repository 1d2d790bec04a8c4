"""What can never run in a pool, and how to say so."""

from octavo.kv.manager import KVCacheManager


def max_tokens_that_fit(manager: KVCacheManager, prompt_len: int) -> int:
    """The largest max_tokens with which a prompt of `prompt_len` tokens can run when it is alone; 0 when the prompt itself can't.

    The last token's K and V are never needed, so it takes no place.
    """
    return max(0, manager.usable_tokens(prompt_len) - prompt_len + 1)


def refuse_reason(manager: KVCacheManager, prompt_len: int, max_tokens: int) -> str | None:
    """Why such a request can never run, with the numbers and the setting to change; None when it can."""
    fitting = max_tokens_that_fit(manager, prompt_len)
    if max_tokens <= fitting:
        return None
    pool = f"the KV cache has {manager.usable_tokens(prompt_len)} usable tokens ({manager.num_blocks} blocks of {manager.block_size})"
    if not fitting:
        return f"the prompt has {prompt_len} tokens, but {pool}; shorten the prompt, or raise num_blocks or kv_cache_memory_bytes"
    return (
        f"the prompt's {prompt_len} tokens and max_tokens={max_tokens} don't fit together: {pool}; "
        f"lower max_tokens to {fitting}, or raise num_blocks or kv_cache_memory_bytes"
    )
