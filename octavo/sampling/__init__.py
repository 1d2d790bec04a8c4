"""Logits to tokens.  The sampler's heavy passes are kernels (`octavo.kernels.sampling_ops`); what is here decides and remembers."""

from octavo.sampling.sampler import Sampled, Sampler

__all__ = ["Sampled", "Sampler"]
