"""Immutable, content-addressed sets of training rows: format, reading, verification, removal."""
