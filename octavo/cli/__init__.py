"""The `octavo` command.  Every subcommand imports what it needs when it runs, so that `octavo --help` loads no torch."""
