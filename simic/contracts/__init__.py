"""The vocabulary all rooms share: no torch, no I/O."""
