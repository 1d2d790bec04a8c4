"""Philox-4x32-10: the random numbers of draws (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3).

A counter-based generator has no state to lose: the number at a position is a function of (seed, sample, position) alone, so a
request that is preempted, moved, or run beside others draws the same.
"""

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words from a counter of four 32-bit words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low = c0 * _MULTIPLIER_0
        high = c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _MASK, (low >> 32) ^ c3 ^ k1, low & _MASK
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The number in [0, 1), with 53 random bits, with which sample `sample_index` of a request draws its output token `position`.

    seed: in [0, 2**64), the key.  sample_index in [0, 2**32) and position in [0, 2**64) make the counter.
    """
    counter = (position & _MASK, position >> 32, sample_index, 0)
    w0, w1, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32))
    return ((w0 << 32 | w1) >> 11) * 2.0**-53
