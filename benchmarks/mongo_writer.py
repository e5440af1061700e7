"""A service that commits its entity and an event in one transaction, at a steady rate, to measure latency.

Arguments: URI, database, rate, seconds and, so that several writers do not meet, the number of the first entity. The
note of an event is the time in ms since 1970.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from pymongo import MongoClient

from benchmarks.mongo import event


def main() -> None:
    uri, database, rate, seconds, *entity = sys.argv[1:]
    first = int(entity[0]) if entity else 0
    with MongoClient[dict[str, Any]](uri) as client, client.start_session() as session:
        users, outbox = client[database].users, client[database].outbox
        began = time.monotonic()
        for number in range(int(rate) * int(seconds)):
            due = began + number / int(rate)
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if time.monotonic() - began > int(seconds):
                break
            with session.start_transaction():
                users.update_one(
                    {"_id": first + number % 5000}, {"$inc": {"revision": 1}}, upsert=True, session=session
                )
                added = event(number)
                added["payload"]["note"] = f"{time.time() * 1000:0100.3f}"
                outbox.insert_one(added, session=session)


if __name__ == "__main__":
    main()
