"""Short import name: ``import uif`` is ``import uif_tvm``."""

import sys

import uif_tvm

sys.modules[__name__] = uif_tvm
