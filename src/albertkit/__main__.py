"""`python -m albertkit`, which is also how `torchrun` starts the command line."""

from albertkit.cli import main

main()
