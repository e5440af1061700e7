"""The projection of docs/rocksdb.md works as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from helpers.store_scenarios import in_loop
from tailrace.projections import ProjectionTester

PAGE = Path(__file__).parents[4] / "docs" / "rocksdb.md"


@in_loop
async def test_the_projection_of_the_page(tmp_path: Path) -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert source.count("/var/lib/balances") == 1
    shown: dict[str, Any] = {}
    exec(source.replace("/var/lib/balances", str(tmp_path)), shown)
    async with ProjectionTester(shown["chain"]) as tester:

        def balances() -> dict[bytes, bytes]:
            with shown["store"].reading() as reader:
                return dict(reader.items("balances"))

        for slot, payments in ((1, [["ann", 5]]), (2, [["ann", -2], ["bob", 2]])):
            await tester.send("RollForward", {"slot": slot, "id": f"0{slot}", "payments": payments})
        assert balances() == {b"ann": b"3", b"bob": b"2"}
        await tester.send("RollBackward", {"slot": 1, "id": "01"})
        assert balances() == {b"ann": b"5"}
        await tester.send("RollForward", {"slot": 3, "id": "03", "payments": [["bob", 1]]})
        assert balances() == {b"ann": b"5", b"bob": b"1"}
        assert tester.outcomes["applied"] == 4
