"""From a snapshot to a policy: distillation, or cloning, value fit and V-trace with bounded replay."""
