"""`make audit`: known vulnerabilities of what the locks name, by pip-audit.

    python requirements/audit.py [OPTION OF pip-audit ...]        -s osv: the other database

A check that could not look must not look like one that found nothing: where the database does not answer, pip-audit
alone says "No known vulnerabilities found" and 0. So it is shown a release first that is known to be vulnerable; only
a database that knows it is asked about the locks.

Exit codes: 0 nothing is known of them; 1 something is, or a package is not known there; 75 nothing was checked.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# cpu.txt is part of cuda.txt (tests/repo/test_locks.py).
LOCKS = ("cuda.txt", "image.txt", "toolkit.txt", "dev.txt", "validators.txt", "audit.txt")
KNOWN = "jinja2==2.11.2"  # since 2021
NOT_CHECKED = 75  # sysexits.h: a temporary failure


def main() -> int:
    options = sys.argv[1:]
    if (why := silent(options)) is not None:
        print(f"audit: NOT CHECKED: the advisory database does not answer here ({why})")
        return NOT_CHECKED
    codes = [audit(HERE / name, options) for name in LOCKS]
    print(f"audit: {len(LOCKS) - sum(codes)} of {len(LOCKS)} locks have no known vulnerability")
    return 1 if any(codes) else 0


def silent(options: list[str]) -> str | None:
    """Why the database cannot be believed; None: it knows what it should."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(f"{KNOWN}\n")
        file.flush()
        answer = run(file.name, "--no-deps", "--format", "json", *options, capture_output=True, text=True)
    try:
        found = [one for each in json.loads(answer.stdout)["dependencies"] for one in each.get("vulns", ())]
    except (ValueError, KeyError):
        lines = answer.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"pip-audit ended with {answer.returncode}"
    return None if found else f"it knows nothing against {KNOWN}"


def audit(lock: Path, options: list[str]) -> int:
    """0 or 1; what was found is printed by pip-audit."""
    print(f"audit: {lock.name}", flush=True)
    return int(run(str(lock), "--require-hashes", *options).returncode != 0)


def run(requirements: str, *options: str, **how: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--progress-spinner", "off"]
    return subprocess.run([*command, "-r", requirements, *options], check=False, **how)  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
