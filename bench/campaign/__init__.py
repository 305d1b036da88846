"""Planned comparisons: the order of boots, the endpoints and the limits are written down and sealed before the first run."""
