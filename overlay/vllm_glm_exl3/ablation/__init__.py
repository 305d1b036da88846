"""Projection ablation: W' = (I - alpha r r^T / |r|^2) W on attention's output projections. Importing this imports nothing."""
