"""Maps the top-level folders to the packages below ``kvoracle``.

The rest of the metadata is in ``pyproject.toml``.  The list of packages is computed, so
that a new folder is never left out of a wheel; setuptools has no declarative way to find
packages under one name and install them under another.
"""

from setuptools import find_namespace_packages, setup

FOLDERS = ("model", "spec", "impl", "oracle", "scenarios")

found = find_namespace_packages(
    include=[pattern for folder in FOLDERS for pattern in (folder, f"{folder}.*")],
    exclude=["*.__pycache__"],
)

setup(
    packages=[f"kvoracle.{package}" for package in found],
    package_dir={f"kvoracle.{folder}": folder for folder in FOLDERS},
)
