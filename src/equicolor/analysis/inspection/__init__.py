"""Pages about one network: ``equicolor inspect``. Needs the ``[train]`` extra."""
