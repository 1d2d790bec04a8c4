"""`ExpertsConfig`: the mixtures of experts that stand where a decoder's MLPs would."""

from dataclasses import dataclass

from octavo.core.errors import ModelLoadError

MAX_EXPERTS = 1 << 12


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """count: experts of a layer.  per_token: how many of them a token goes through.  inner_size: width inside each.

    normalize: a token's shares sum to 1 (else they are what the softmax over all experts gives).  layers: which layers have experts;
    the others have one MLP.

    Raises ModelLoadError naming the file, the field and the limit.
    """

    source: str
    count: int
    per_token: int
    inner_size: int
    normalize: bool
    layers: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_EXPERTS:
            raise ModelLoadError(f"{self.source}: {self.count} experts; there must be at least 1 and at most {MAX_EXPERTS}")
        if not 1 <= self.per_token <= self.count:
            raise ModelLoadError(f"{self.source}: num_experts_per_tok={self.per_token} must be at least 1 and at most {self.count}")

    def weights(self, hidden_size: int) -> int:
        """Of one layer, with what scores the experts."""
        return self.count * (3 * hidden_size * self.inner_size + hidden_size)

    def active_weights(self, hidden_size: int) -> int:
        """Of one layer, those that one token passes through."""
        return 3 * self.per_token * hidden_size * self.inner_size + self.count * hidden_size
