"""`python -m metastep` is the `metastep` command."""

from metastep.cli import main

main()
