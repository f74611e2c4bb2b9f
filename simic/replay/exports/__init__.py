"""Snapshots for other people's programs: Minari data sets, and shards for PyTorch Geometric. No pickle in either."""
