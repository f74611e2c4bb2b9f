"""Custom hosts: any ``torch.nn.Module`` as a host; ``docs/own-hosts.md`` is the guide."""

from simic.hosts.custom.interface import Layer, ModuleFamily, ModuleHost, Samples

__all__ = ["Layer", "ModuleFamily", "ModuleHost", "Samples"]
