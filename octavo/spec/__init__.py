"""What a model's memory looks like, from its config alone: one truth for `kv`, `models`, `runner` and `capacity`.  No torch."""
