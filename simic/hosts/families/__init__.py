"""One file per host family; the file name is its name and ``FAMILY`` its instance."""
