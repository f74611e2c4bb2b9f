"""What a training tells others while it runs."""
