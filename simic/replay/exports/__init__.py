"""One module per export format: ``FORMAT`` equals the file name, ``SUMMARY`` is one line of help, ``write`` exports.

Other packages add formats through the entry-point group ``simic.exports``. No export holds pickles.
"""

from simic.runtime.plugin_folder import PluginFolder

__all__ = ["EXPORTS"]

EXPORTS = PluginFolder("export format", "simic.replay.exports", "simic.exports", ("FORMAT", "SUMMARY", "write"))
