"""``python -m equicolor``: the command line."""

from equicolor.cli import main

main()
