"""Collection: grow hosts under a controller and report every decision to the bus."""
