"""Tables, figures, self-contained pages and progress bars. Needs the ``[train]`` extra."""
