"""Mathematics on arrays and tensors; nothing here knows what a host, a report or a policy is."""
