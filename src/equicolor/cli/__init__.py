"""The ``equicolor`` command: one thin file per command. Needs the ``[train]`` extra."""

from equicolor.cli.app import main

__all__ = ["main"]
