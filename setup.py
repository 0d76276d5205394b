"""Package layout only; everything else is in pyproject.toml.

``targets/``, ``schedules/``, ``relay_passes/`` and ``tuning_logs/`` live at the top of the
repository, where vendors look for them, and are installed inside ``uif_tvm``. Packages are found,
not listed, so that a new folder needs no edit here.
"""

from setuptools import find_packages, setup

OUTSIDE = ("targets", "schedules", "relay_passes", "tuning_logs")

packages = find_packages(include=["uif_tvm", "uif_tvm.*"])
for root in OUTSIDE:
    packages += [f"uif_tvm.{root}"] + [f"uif_tvm.{root}.{sub}" for sub in find_packages(root)]

setup(packages=packages, package_dir={f"uif_tvm.{root}": root for root in OUTSIDE})
