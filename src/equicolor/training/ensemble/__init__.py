"""Many small networks trained side by side as one: the ColorMNIST experiments."""
