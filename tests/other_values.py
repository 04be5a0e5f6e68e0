"""Another value than the default for every setting of a recipe."""

from typing import Any

from equicolor.training.fields import settings
from equicolor.training.recipes import TrainingRecipe


def other_value(name: str) -> Any:
    """A value of a setting that is not the default."""
    about, default = settings(TrainingRecipe)[name], getattr(TrainingRecipe(), name)
    if about.choices:
        return next(choice for choice in about.choices if choice != default)
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else (default or 0) / 2 or 0.25
