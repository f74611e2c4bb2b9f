"""From a snapshot to a policy: cloning, value fit, V-trace with bounded replay."""
