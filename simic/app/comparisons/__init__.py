"""Several controllers, policies, recipes or training seeds, compared with each other."""
