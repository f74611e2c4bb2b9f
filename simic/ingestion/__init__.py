"""Bus to lake: validate, land, then acknowledge; what is refused is kept with its reason."""
