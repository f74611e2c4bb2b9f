"""One file per blueprint; the file's name is the blueprint's name and ``BLUEPRINT`` the thing itself."""
