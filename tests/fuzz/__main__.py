"""`make fuzz SECONDS=… SEED=… TARGET=…`: mutates inputs for so long, divided between the targets."""

from __future__ import annotations

import os
import sys

from fuzz.driver import CORPUS, fuzz, seconds
from fuzz.targets import TARGETS


def main() -> int:
    chosen = os.environ.get("TARGET") or ""
    names = [chosen] if chosen else list(TARGETS)
    limit = float(os.environ.get("SECONDS") or 60) / len(names)
    seed = int(os.environ.get("SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"seed {seed}")
    findings = 0
    for name in names:
        runs, finding = fuzz(name, seed, going=seconds(limit))
        print(f"{name:14} {runs:8} inputs", "" if finding is None else f"FOUND {finding}")
        if finding is not None:
            findings += 1
            (CORPUS / name / f"finding-{seed}").write_bytes(finding.data)
    return min(findings, 1)


if __name__ == "__main__":
    sys.exit(main())
