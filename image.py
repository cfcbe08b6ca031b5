"""What `bentoml containerize` builds on: BentoML's usual image without its compiler, git and package lists (579 MB).

The base and the packages stand in `bentofile.yaml`, which wins over what is said here.
"""

from __future__ import annotations

import bentoml

# `distro="none"` is what leaves the system packages out; BentoML has no other switch for it. The folders named here are
# in place before packages are installed, the rest of the Bento comes after.
image = bentoml.images.Image(
    base_image="python:3.11-slim-bookworm", distro="none", lock_python_packages=False
).build_include("requirements", "wheels", "deploy/image")
