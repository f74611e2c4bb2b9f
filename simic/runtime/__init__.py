"""Shared services: the home, settings, clock, seeds, locks, processes, progress and telemetry."""
