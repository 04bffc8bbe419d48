"""pytest within a test: a suite of its own, without this project's settings and plugins."""

import os
import subprocess
import sys
from pathlib import Path


def nested(tests: str, folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """Run the source of a file of tests in `folder` and return the exit code and the output.

    A pytest with the common folder for temporary files would, before it ends, delete those of earlier suites, which
    takes minutes where they are many.
    """
    (folder / "test_nested.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    own = [f"--basetemp={folder / 'temporary'}", str(folder / "test_nested.py"), *map(str, options)]
    root, environment = Path(__file__).parent.parent, os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([*command, *own], capture_output=True, text=True, cwd=root, env=environment)
