"""The arena: one reserved mapping that holds every block of the pool."""

import mmap

import torch

from octavo.core.errors import CapacityError


class Arena:
    """`num_blocks` regions of `block_bytes` in one anonymous mapping.

    Pages are taken from the machine when they are first written, so an idle pool costs address space only; huge pages are asked
    for, since a kernel reads a sequence in steps as wide as a page of all layers.  `bytes`: uint8 [num_blocks * block_bytes].
    Raises CapacityError when the mapping is refused.
    """

    def __init__(self, num_blocks: int, block_bytes: int, *, poison: bool = False) -> None:
        size = num_blocks * block_bytes
        try:
            # Private: a shared mapping is shared memory to the system, which grants that no huge pages by default.
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise CapacityError(
                f"the machine refused {size:,} bytes for the KV cache ({num_blocks:,} blocks): {error}; lower num_blocks"
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.block_bytes = block_bytes
        if poison:
            self.poison()

    def poison(self) -> None:
        """Fill every byte with ones: a NaN in each storage type, so that a read of what was never written shows."""
        self.bytes.fill_(0xFF)

    def poison_block(self, block: int) -> None:
        self.bytes[block * self.block_bytes : (block + 1) * self.block_bytes].fill_(0xFF)
