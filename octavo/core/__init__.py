"""The values that travel between the parts of Octavo: frozen, and without behaviour."""
