"""The world: simulation of many hosts at once, independent of each other, which grow while they train."""
