"""Shared services: settings, clock, seeds, locks, processes, progress and telemetry."""
