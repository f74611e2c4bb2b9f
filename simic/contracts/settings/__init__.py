"""Settings: what a person chooses, and its bounds."""
