"""What benchmarks have in common besides their peers."""
