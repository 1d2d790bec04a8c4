"""One file per architecture: how its config reads, and how its checkpoint makes a program."""
