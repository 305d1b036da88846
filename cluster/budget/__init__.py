"""Memory budget: what a kit's settings will take on each node, and whether it fits, said before the launch."""
