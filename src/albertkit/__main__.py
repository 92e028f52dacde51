"""`python -m albertkit`, which is also how `torchrun` starts the command line."""

from albertkit.cli.entry_point import main

main()
