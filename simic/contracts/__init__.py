"""The types that all packages share: no torch, no I/O but reading package data."""
