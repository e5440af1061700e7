"""`tailrace check` and a start with a standby as source, and with a connector in synchronous_standby_names."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.command import Tailrace
from helpers.standby import open_pair
from tailrace.testkit.stack import KafkaBroker, wait_until


def test_a_standby_and_synchronous_standby_names(kafka: KafkaBroker, tmp_path: Path, tailrace: Tailrace) -> None:
    with open_pair("16", kafka, tmp_path) as pair:
        shop = pair.shop
        shop.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        shop.execute("SELECT pg_reload_conf()")
        wait_until(lambda: shop.execute("SHOW synchronous_standby_names") == [("*",)], what="the setting")
        found = {check["name"]: check for check in tailrace("check", shop.file)["checks"]}
        assert found["synchronous standbys"]["state"] == "WARN"
        assert "primary" not in found

        pair.standby.caught_up()
        pair.proxy.point_at(pair.standby.host, pair.standby.port)
        pair.proxy.cut()
        found = {check["name"]: check for check in tailrace("check", shop.file, code=1)["checks"]}
        assert (found["primary"]["state"], "start" in found) == ("FAIL", False), json.dumps(found)
        connector = shop.start(wait=False)
        connector.failed("SourceReadOnly")
        assert "Name the primary in source.postgres" in connector.log
