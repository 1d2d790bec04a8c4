"""Tables of cosines and sines, made once for the longest sequence: no frequency depends on a sequence's current length.

So a token's K is the same whenever it was computed, and may be kept and shared.  A scaling that other engines switch as a sequence
grows (dynamic, longrope) is settled by `length`, as it would be for a sequence of just that many tokens.
"""

import math

import torch

from octavo.core.errors import CapacityError
from octavo.kernels.program import Rope
from octavo.spec.rope import RopeConfig

MAX_TABLE_BYTES = 4 << 30


def rope_tables(config: RopeConfig, length: int) -> Rope:
    """cos and sin, float32 [length, rotary_dim / 2] each.  Raises CapacityError when they would pass 4 GiB."""
    nbytes = table_bytes(config, length)
    if nbytes > MAX_TABLE_BYTES:
        raise CapacityError(
            f"the rotary tables for {length} positions take {nbytes} bytes, more than {MAX_TABLE_BYTES}; set a smaller max_model_len"
        )
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequencies(config, length))
    cos, sin = angles.cos(), angles.sin_()
    if config.attention_factor != 1.0:
        cos.mul_(config.attention_factor)
        sin.mul_(config.attention_factor)
    return Rope(cos, sin)


def table_bytes(config: RopeConfig, length: int) -> int:
    """Of both tables."""
    return 2 * 4 * length * (config.rotary_dim // 2)


def inverse_frequencies(config: RopeConfig, length: int) -> torch.Tensor:
    """Radians per position of each pair, float32 [rotary_dim / 2], for sequences of up to `length` tokens."""
    match config.scaling:
        case "default":
            return 1.0 / _wavelengths(config, config.theta)
        case "linear":
            return 1.0 / _wavelengths(config, config.theta) / config.factor
        case "dynamic":
            return 1.0 / _wavelengths(config, _dynamic_theta(config, length))
        case "llama3":
            return _llama3(config)
        case "yarn":
            return _yarn(config)
        case "longrope":
            factors = config.long_factors if length > config.original_max_positions else config.short_factors
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * _wavelengths(config, config.theta))


def _wavelengths(config: RopeConfig, theta: float) -> torch.Tensor:
    """theta^(2i / d): positions per radian of pair i (Su et al. 2021, equation 15)."""
    return theta ** (torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim)


def _dynamic_theta(config: RopeConfig, length: int) -> float:
    """The base stretched so far that the slowest frequency spans `length` (NTK-aware scaling, as published by bloc97 and emozilla)."""
    original = config.original_max_positions
    stretch = config.factor * max(length, original) / original - (config.factor - 1)
    if config.rotary_dim == 2:
        return config.theta
    return config.theta * stretch ** (config.rotary_dim / (config.rotary_dim - 2))


def _llama3(config: RopeConfig) -> torch.Tensor:
    """Low frequencies divided by the factor, high ones kept, a blend between (Grattafiori et al. 2024, and Meta's released code)."""
    inverse = 1.0 / _wavelengths(config, config.theta)
    turns = config.original_max_positions * inverse / (2 * math.pi)  # over the trained length
    keep = ((turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * inverse / config.factor + keep * inverse


def _yarn(config: RopeConfig) -> torch.Tensor:
    """Interpolation by parts over the index of the frequency (Peng et al. 2023, section 3.2)."""
    dim = config.rotary_dim

    def index_of(turns: float) -> float:
        return dim * math.log(config.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = index_of(config.beta_fast), index_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    interpolate = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inverse = 1.0 / _wavelengths(config, config.theta)
    return inverse / config.factor * interpolate + inverse * (1 - interpolate)
