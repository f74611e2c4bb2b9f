"""Episodes shown to a person, while they run and afterwards."""
