"""What a user's pip may not replace, as constraints: torch, its CUDA, and what is compiled against them.

python image/constraints.py LOCK...    # in the image, for its Python and platform
"""

import re
import sys
from pathlib import Path

from packaging.requirements import Requirement

KEPT = re.compile(r"(torch|triton|deepspeed|accelerate|numpy|nvidia-|cuda-)[a-z0-9-]*==")


def constraints(text: str) -> set[str]:
    """Of the lines of a lock. It has a numpy for each Python: with two of them pip would find none that suits."""
    found = (Requirement(line.rstrip(" \\")) for line in text.splitlines() if KEPT.match(line))
    return {f"{each.name}{each.specifier}" for each in found if not each.marker or each.marker.evaluate()}


if __name__ == "__main__":
    print("\n".join(sorted(set().union(*(constraints(Path(name).read_text()) for name in sys.argv[1:])))))
