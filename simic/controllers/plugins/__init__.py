"""One module per controller: ``NAME`` equals the file name, ``SUMMARY`` is one line of help, ``make`` builds it.

Other packages add controllers through the entry-point group ``simic.controllers``.
"""

from simic.runtime.plugin_folder import PluginFolder

__all__ = ["CONTROLLERS"]

CONTROLLERS = PluginFolder("controller", "simic.controllers.plugins", "simic.controllers", ("NAME", "SUMMARY", "make"))
