"""`make chaos MINUTES=… SEED=…`: see the package."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from helpers.chaos.run import ChaosRun, Report, store
from helpers.chaos.world import World

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "chaos.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results, if no longer run is stored there")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs also after a success")
    given = parser.parse_args()
    seed = given.seed or random.SystemRandom().randrange(1, 2**31)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {seed}, {given.minutes:g} minutes; logs in {folder}", flush=True)
    with World(folder, seed) as world:
        run = ChaosRun(world, seed, given.minutes, lambda line: print(line, flush=True), limit=given.minutes * 60)
        print("\n".join(str(fault) for faults in run.chapters for fault in faults), flush=True)
        try:
            run.run()
        except BaseException as error:  # noqa: BLE001 - the report has it
            print(world.logs(), file=sys.stderr)
            print(
                f"\nFAILED: {error}\n\nThe same schedule again (times will differ): "
                f"make chaos MINUTES={given.minutes:g} SEED={seed}"
            )
        output = given.output or (RESULTS if given.minutes >= stored_minutes() else folder / RESULTS.name)
        store(run.report, output)
        show(run.report, output)
    return int(bool(run.report.failure))


def stored_minutes(file: Path = RESULTS) -> float:
    return float(json.loads(file.read_text())["minutes"]) if file.exists() else 0.0


def show(report: Report, output: Path) -> None:
    print("\nfaults injected:")
    for name, count in sorted(report.faults.items()):
        print(f"  {count:4}  {name}")
    print(f"  {report.faults.total():4}  in total, of {len(report.schedule)} planned; {report.seconds:.0f} s")
    for name, found in report.pipelines.items():
        print(f"{name}: {found}")
    for name, found in report.projections.items():
        print(f"{name}: {found}")
    for name, ends in report.restarted_by_supervisor.items():
        print(f"{name}: ended by itself {len(ends)} times")
    print(f"{report.events_compared} events compared; seed {report.seed}; stored in {output}")


if __name__ == "__main__":
    sys.exit(main())
