"""What can never run in a pool, and how to say so."""

from octavo.core.request import Request
from octavo.kv.manager import KVCacheManager


def max_tokens_that_fit(manager: KVCacheManager, prompt_len: int) -> int:
    """The largest max_tokens with which a prompt of `prompt_len` tokens can run when it is alone; 0 when the prompt itself can't.

    The last token's K and V are never needed, so it takes no place.
    """
    return max(0, manager.usable_tokens(prompt_len) - prompt_len + 1)


def refuse_reason(manager: KVCacheManager, request: Request, max_num_seqs: int) -> str | None:
    """Why `request` can never run, with the numbers and the setting to change; None when it can."""
    prompt_len, max_tokens = len(request.prompt_token_ids), request.max_tokens
    fitting = max_tokens_that_fit(manager, prompt_len)
    if max_tokens <= fitting:
        return None if request.beam is None else _refuse_beams(manager, prompt_len, max_tokens, request.beam.beam_width, max_num_seqs)
    pool = f"the KV cache has {manager.usable_tokens(prompt_len)} usable tokens ({manager.num_blocks} blocks of {manager.block_size})"
    if not fitting:
        return f"the prompt has {prompt_len} tokens, but {pool}; shorten the prompt, or raise num_blocks or kv_cache_memory_bytes"
    return (
        f"the prompt's {prompt_len} tokens and max_tokens={max_tokens} don't fit together: {pool}; "
        f"lower max_tokens to {fitting}, or raise num_blocks or kv_cache_memory_bytes"
    )


def _refuse_beams(manager: KVCacheManager, prompt_len: int, max_tokens: int, width: int, max_num_seqs: int) -> str | None:
    """All beams must fit at once, since they advance together: the prompt's full blocks once, all else once for each."""
    if not manager.can_fork:
        return "beam search forks sequences, and kv_layout='reserved' shares no memory; use kv_layout='paged'"
    if width > max_num_seqs:
        return f"beam_width={width} is above the {max_num_seqs} sequences that may run at once; lower it, or raise max_num_seqs"
    shared = prompt_len // manager.block_size
    needed = shared + width * (manager.blocks_for(prompt_len + max_tokens - 1) - shared)
    if needed <= manager.num_blocks:
        return None
    return (
        f"{width} beams of {prompt_len} prompt and {max_tokens} new tokens take up to {needed} blocks of {manager.block_size}; "
        f"the KV cache has {manager.num_blocks}; lower beam_width or max_tokens, or raise num_blocks or kv_cache_memory_bytes"
    )
