"""What benchmarks measure themselves against; ``scene`` alone knows the insides of ``simic.hosts``."""
