"""Replay: snapshots as columns, and batches of whole sequences from them."""
