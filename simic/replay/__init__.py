"""Snapshots as columns in memory, and whole sequences out of them."""
