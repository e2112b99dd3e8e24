"""The plugin is no part of the package: it is put on the path here as it is on the server's."""

import sys
from pathlib import Path

PATCHES = Path(__file__).resolve().parents[2] / "patches"
sys.path.append(str(PATCHES / "hs_dump"))
