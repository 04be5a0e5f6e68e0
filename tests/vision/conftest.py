"""torchvision and timm: their tests run where they are installed (``make vision``)."""

from equicolor._packages import declare_vision_operators

collect_ignore = ["families.py"]  # holds no tests, and is imported by those that need it

declare_vision_operators()  # these tests import torchvision themselves
