"""Publish a champion to production: a signed pointer on the bus, once."""
