"""Order and schedule: no SQL, no tensors, no thresholds."""
