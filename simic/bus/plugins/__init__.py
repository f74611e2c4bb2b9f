"""One module per bus: ``NAME`` equals the file name, ``SCHEMES`` are the schemes of its URLs, ``open_bus`` opens it.

Other packages add a bus through the entry-point group ``simic.buses``.
"""

from simic.runtime.plugin_folder import PluginFolder

__all__ = ["BUSES"]

BUSES = PluginFolder("bus", "simic.bus.plugins", "simic.buses", ("NAME", "SCHEMES", "open_bus"))
