"""Learning: trainers and the recipes they follow."""
