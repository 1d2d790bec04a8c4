"""`DummyWeights`: random weights of whatever shape is asked for, to measure shapes whose weights aren't at hand."""

import hashlib
import math

import torch

POOL = 1_000_003  # a prime, so that rows of a matrix don't repeat each other


class DummyWeights:
    """Seeded: a tensor depends on its name, its shape and the seed alone.  Matrices get N(0, 0.02), norms 1, biases 0."""

    def __init__(self, seed: int, *, absent: frozenset[str] = frozenset()) -> None:
        self._seed = seed
        self._absent = absent
        self._pool = torch.randn(POOL, generator=torch.Generator().manual_seed(seed % (1 << 63))) * 0.02

    def __contains__(self, name: str) -> bool:
        return name not in self._absent

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Whatever is expected is there."""

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if len(shape) == 1:
            return torch.full(shape, 0.0 if name.endswith(".bias") else 1.0, dtype=dtype)
        out = torch.empty(math.prod(shape), dtype=dtype)
        begin = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") % POOL
        source = self._pool.roll(-begin).to(dtype)
        for low in range(0, out.numel(), POOL):
            part = out[low : low + POOL]
            part.copy_(source[: part.numel()])
        return out.view(shape)

    def stored_dtypes(self) -> set[str]:
        return {"F32"}

    def digest(self) -> str:
        return hashlib.sha256(f"dummy weights, seed {self._seed}".encode()).hexdigest()
