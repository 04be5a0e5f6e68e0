"""Experiments, the paper's and others, and what runs and reports them.

:mod:`equicolor.paper.experiment` says what one is, :mod:`equicolor.paper.registry` lists them. They
need the ``[train]`` extra.
"""
