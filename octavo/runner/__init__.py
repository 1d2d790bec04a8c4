"""Carrying a `StepPlan` out on bytes and tensors: memory operations, forward pass, sampling."""
