"""The memory report that ends a run."""

from typing import Any

from octavo.cli.table import size
from octavo.cli.watch import PoolWatch


def memory_report(plan: dict[str, Any], stats: Any, *, watch: PoolWatch, seconds: float, tokens_out: int) -> str:
    """Lines on where the KV cache stands and what it did.

    plan: a memory plan as a dict.  stats: the engine's, now.  watch: what was seen while it ran.  seconds: wall time of the
    generation; tokens_out: tokens that it gave.
    """
    block_bytes = plan["bytes_per_token"] * plan["block_size"]
    peak = watch.peak_leased
    cached = f", {stats.tokens_cached:,} read from memory" if stats.tokens_cached else ""
    preempted = f"; {stats.preemptions:,} preemptions ({stats.tokens_recomputed:,} tokens again)" if stats.preemptions else ""
    return "\n".join(
        (
            f"KV cache   {stats.blocks_total:,} blocks of {plan['block_size']} tokens = {size(plan['kv_bytes'])}",
            f"  at peak  {peak:,} leased = {size(peak * block_bytes)} for {watch.peak_running:,} running at once;"
            f" {watch.peak_useful:.1%} of their tokens useful",
            f"  now      {stats.blocks_free:,} free, {stats.blocks_cached:,} cached, {stats.blocks_leased:,} leased",
            f"prefixes   {stats.hit_rate:.1%} of {stats.prompt_tokens:,} prompt tokens read from memory;"
            f" {watch.peak_shared:,} blocks shared at peak, sharing saved {stats.sharing_mean:.1%} on average",
            f"tokens     {tokens_out:,} out in {seconds:.2f} s = {tokens_out / seconds if seconds else 0.0:,.1f} tokens/s;"
            f" {stats.tokens_computed:,} computed{cached}{preempted}",
        )
    )
