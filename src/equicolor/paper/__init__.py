"""Experiments, the paper's and others, and the code that runs and reports them.

:mod:`equicolor.paper.experiment` defines what an experiment is, :mod:`equicolor.paper.registry`
lists them. They need the ``[train]`` extra.
"""
