"""Is B faster than A? Comparison of two arms over several boots each, with a verdict decided by rules that were fixed before."""
