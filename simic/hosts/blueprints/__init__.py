"""One file per blueprint; the file name is its name and ``BLUEPRINT`` its instance."""
