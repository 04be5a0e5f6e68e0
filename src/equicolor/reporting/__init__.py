"""Saying what was found: tables, figures and self-contained pages. Needs the ``[train]`` extra."""
