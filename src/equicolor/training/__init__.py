"""Learning: trainers and the recipes they follow."""

from equicolor._packages import declare_vision_operators

declare_vision_operators()  # before any module here imports lightning, which imports torchvision
