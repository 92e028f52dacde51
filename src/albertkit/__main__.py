"""Entry point of `python -m albertkit`; `torchrun` uses it too."""

from albertkit.cli.entry_point import main

main()
