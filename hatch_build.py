"""The URLs of the project in its metadata: of the repository that a release is built in, which GitHub tells its runners
as `GITHUB_REPOSITORY`, so that none is written here that may be another's. Elsewhere those of the papers alone.
"""

import os
from collections.abc import Mapping
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


# Clustering of particles, of causal ones, and of hardmax ones; an index takes labels of at most 32 characters.
PAPERS = {f"arXiv {number}": f"https://arxiv.org/abs/{number}" for number in ("2312.10794", "2411.04990", "2407.01602")}


def urls(environment: Mapping[str, str]) -> dict[str, str]:
    """The label and the address of each."""
    name = environment.get("GITHUB_REPOSITORY", "")
    if not name:
        return PAPERS
    owner, _, repository = name.partition("/")
    home = f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    of_repository = {
        "Homepage": home,
        "Documentation": f"https://{owner.lower()}.github.io/{repository}/",
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
    }
    return of_repository | PAPERS


class ProjectURLs(MetadataHookInterface):
    """What hatchling asks for the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = urls(os.environ)
