"""What every stage stands on: settings, clock, seeds, locks, processes, progress and telemetry."""
