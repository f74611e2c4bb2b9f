"""Canonical bytes, digests, signing and verification."""
