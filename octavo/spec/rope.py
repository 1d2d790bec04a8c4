"""`RopeConfig`: how rotary embedding scales a model's frequencies (Su et al. 2021, and those who stretched it)."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from octavo.core.errors import ModelLoadError, UnsupportedModelError

RopeScaling = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]

MAX_VALUE = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Everything that the tables of cosines and sines depend on, beside the length that they are made for.

    source: the file that it came from, for messages.  rotary_dim: elements of a head that turn.
    original_max_positions: the length that the model was trained for before its frequencies were stretched by `factor`.
    attention_factor: multiplies cosines and sines (yarn: Peng et al. 2023, section 3.4; longrope: Ding et al. 2024).
    low_freq_factor, high_freq_factor: bounds of llama3's blend.  beta_fast, beta_slow, truncate: bounds of yarn's ramp.
    short_factors, long_factors: longrope's divisor of each frequency, up to and beyond the original length.

    Raises ModelLoadError, or UnsupportedModelError for a scaling that isn't known.
    """

    source: str
    rotary_dim: int
    original_max_positions: int
    theta: float = 10000.0
    scaling: RopeScaling = "default"
    factor: float = 1.0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.scaling not in get_args(RopeScaling):
            raise UnsupportedModelError(
                f"{self.source}: rope scaling {self.scaling!r} isn't known; these are: {', '.join(get_args(RopeScaling))}"
            )
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ModelLoadError(f"{self.source}: {self.rotary_dim} elements of a head rotate; it must be an even number above 0")
        for name in ("theta", "factor", "attention_factor"):
            value = getattr(self, name)
            if not 0 < value <= MAX_VALUE:
                raise ModelLoadError(f"{self.source}: rope {name}={value} must be above 0 and at most {MAX_VALUE:g}")
        if self.scaling == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ModelLoadError(
                f"{self.source}: rope low_freq_factor={self.low_freq_factor} must be above 0 "
                f"and below high_freq_factor={self.high_freq_factor}"
            )
        for name in ("short_factors", "long_factors"):
            self._check_factors(name, getattr(self, name))

    def _check_factors(self, name: str, factors: tuple[float, ...]) -> None:
        expected = self.rotary_dim // 2 if self.scaling == "longrope" else 0
        if len(factors) != expected:
            raise ModelLoadError(f"{self.source}: rope {name} has {len(factors)} entries; {expected} frequencies need one each")
        if not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise ModelLoadError(f"{self.source}: rope {name} has an entry that isn't a finite number above 0")

    @property
    def longest(self) -> int:
        """Positions that the stretched frequencies are meant to reach."""
        return int(self.original_max_positions * self.factor)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """0.1 * mscale * ln(factor) + 1 (Peng et al. 2023, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_attention_factor(factor: float, original_max_positions: int) -> float:
    """sqrt(1 + ln(factor) / ln(original length)) (Ding et al. 2024)."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_max_positions))
