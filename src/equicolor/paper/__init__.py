"""Experiments: one module per figure or table.

Each module measures with pure functions, plots what they return, and offers ``run(output)``
that writes both to a folder. They need the ``[train]`` extra.
"""
