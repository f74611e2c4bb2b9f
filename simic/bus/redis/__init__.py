"""The bus over Redis streams, with a spool to fall back on."""
