"""Batched hosts whose seeds are masks over fixed shapes: for CUDA graphs."""
