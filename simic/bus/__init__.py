"""Transport: at-least-once delivery of lines between processes."""
