"""The bus over a folder of files."""
