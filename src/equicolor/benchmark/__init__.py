"""Speed, memory and precision, always as ratios within one run (``equicolor bench``)."""
