"""The world: hosts that grow while they train, many at once and each on its own."""
