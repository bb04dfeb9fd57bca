"""A strict build is strict with `--quiet` too: mkdocs drops warnings then before they are counted, and would pass."""

import logging

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Has warnings counted, and shown, whatever the command line says."""
    logger = logging.getLogger("mkdocs")
    if config.strict and logger.level > logging.WARNING:
        logger.setLevel(logging.WARNING)
    return config
