from __future__ import annotations

import sys
from pathlib import Path

# Graphs around single ops are made by the helpers of the op tests.
sys.path.append(str(Path(__file__).parent.parent / "ops"))
