"""The doctor, and its checks of everything in a home."""
