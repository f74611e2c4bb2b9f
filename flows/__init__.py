"""Order and schedule of the stages: no SQL, no tensors, no thresholds."""
