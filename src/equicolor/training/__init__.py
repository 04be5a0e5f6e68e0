"""Training: recipes, and the code that follows them."""

from equicolor._packages import declare_vision_operators

declare_vision_operators()  # before any module here imports lightning, which imports torchvision
