"""The quality panel: KL divergence of a candidate from a reference on sealed windows."""
