"""Landed reports to immutable, content-addressed snapshots; the rules are the numbered SQL files in
``curation/sql``."""
