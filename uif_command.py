"""Where the ``uif`` command starts.

The version guard raises while ``uif_tvm`` is imported, but ``uif env`` exists to explain just that
situation. So the guard is held back during this import; the command line then asks it itself,
before every verb but ``env``.
"""

import os
import warnings


def main() -> None:
    """Run the command line; exits with its code."""
    before = os.environ.get("UIF_VERSION_GUARD")
    os.environ["UIF_VERSION_GUARD"] = "off"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            from uif_tvm.cli.main import main as run
    finally:
        if before is None:
            del os.environ["UIF_VERSION_GUARD"]
        else:
            os.environ["UIF_VERSION_GUARD"] = before
    run()
