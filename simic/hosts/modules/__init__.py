"""Hosts of your own: any ``torch.nn.Module`` can grow; see ``docs/own-hosts.md``."""

from simic.hosts.modules.family import Layer, ModuleFamily, ModuleHost, Samples

__all__ = ["Layer", "ModuleFamily", "ModuleHost", "Samples"]
