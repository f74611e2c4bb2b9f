"""Composition: the objects of a home, and the commands that work with them."""
