"""One file per family of hosts; the file's name is the family's name and ``FAMILY`` its recipe maker."""
