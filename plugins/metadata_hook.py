"""Hook of hatchling for the distributions here: each needs gguf-spec of its own version.

gguf_spec/__init__.py sets the version of all.
"""

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Dependencies(MetadataHookInterface):
    """Adds gguf-spec of this version to the dependencies of the distribution."""

    def update(self, metadata: dict) -> None:
        ours = f"{self.config['gguf-spec']}=={metadata['version']}"
        metadata["dependencies"] = [ours, *self.config["dependencies"]]
