"""Home directories with something in them: landed reports, snapshots, a registry with champions."""
