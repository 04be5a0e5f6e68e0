"""Looking at one network from all sides: ``equicolor inspect``. Needs the ``[train]`` extra."""
