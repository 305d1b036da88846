"""The ablation lab: a direction, an edit of attention's output projections along it, and what the edit does and costs.

Modules that import torch run in the lab environment (cli/lab_env.py); the others, which read receipts, need neither torch nor numpy.
"""
