"""The benchmark: takes a base URL and a workload, gives traces, metrics and sealed receipts. Knows nothing of ssh or kits."""
