"""Makes a strict build with `--quiet` fail on warnings, which mkdocs would drop before they are counted."""

import logging

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the level of the logger so that warnings are counted and shown."""
    logger = logging.getLogger("mkdocs")
    if config.strict and logger.level > logging.WARNING:
        logger.setLevel(logging.WARNING)
    return config
