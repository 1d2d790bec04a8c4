"""Octavo: an LLM serving engine whose centre is the memory of attention."""
