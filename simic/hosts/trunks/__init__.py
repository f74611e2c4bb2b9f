"""One file per trunk; the file name is its name and ``TRUNK`` its class."""
