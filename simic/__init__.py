"""Simic: the offline factory that turns field reports into better, safer growth controllers."""

__version__ = "0.1.0"
