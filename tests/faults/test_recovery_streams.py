"""Rows 40, 41 and 43 of the fault matrix for MongoDB: renamed, other settings, too large to be sent."""

from __future__ import annotations

import pytest

from helpers.recovery import apply, goes_on, plan, ran_before, refused, work
from helpers.users import Users
from tailrace.errors import RecoveryUncertain
from tailrace.testkit.stack import wait_until


def rename(users: Users, name: str) -> None:
    with users.client() as client:
        client[users.database].outbox.rename(name)


@pytest.mark.slow
def test_a_collection_renamed_while_the_pipeline_runs(users: Users) -> None:
    """Everything before is published when it stops; nothing is lost, and the new collection is followed."""
    ran_before(users)
    connector = users.start()
    work(users)
    rename(users, "outbox_of_yesterday")
    connector.failed("CollectionGone")
    result = plan(users)
    assert (result["case"]["code"], result["missed"]) == ("CollectionGone", 0), result
    assert result["steps"][0] == "create the collections that are missing", result
    work(users)
    assert plan(users)["missed"] == 9
    apply(users)
    goes_on(users)


def test_a_renamed_collection_with_unpublished_documents(users: Users) -> None:
    """A recovery would read the new collection and miss them, so it is refused. The log has them."""
    ran_before(users)
    work(users)
    rename(users, "outbox_of_yesterday")
    work(users)
    with pytest.raises(RecoveryUncertain, match="9 documents were inserted into"):
        plan(users)
    assert "--adopt" in refused(users, "RecoveryUncertain")
    users.start("--adopt")
    verdict = users.caught_up()
    assert verdict.ok, verdict


@pytest.mark.slow
def test_another_list_of_collections(users: Users) -> None:
    """What was missed of the old collection, and everything in the new one."""
    users.configure(source={"start": "beginning"})
    ran_before(users)
    work(users)
    early = users.insert("early", collection="outbox2")
    users.configure(source={"collection": [f"{users.database}.{name}" for name in ("outbox", "outbox2")]})
    users.start(wait=False).failed("StreamChanged")
    result = plan(users)
    assert (result["case"]["code"], result["missed"], result["undecided"]) == ("StreamChanged", 10, 0), result
    apply(users)
    connector = users.start()
    late = users.insert("late", collection="outbox2")
    work(users)
    wait_until(lambda: late in {seen.id for seen in users.published()}, 60, what=f"it:\n{connector.log}")
    assert not users.caught_up().missing
    verdict = users.verdict()
    assert (set(verdict.phantom), verdict.duplicated, verdict.out_of_order) == ({early, late}, [], []), verdict


@pytest.mark.slow
def test_changes_that_are_too_large(users: Users) -> None:
    """The collection has what the log cannot send: they are dead-lettered for their size, and the rest is
    published.
    """
    users.start().stop()
    before = users.insert("before")
    large = [users.insert("large", _id=f"{number}" + "i" * 100_000, note="n" * 16_550_000) for number in range(2)]
    after = users.insert("after")
    with users.client() as client:
        splits = tuple(client.server_info()["versionArray"][:3]) >= (6, 0, 9)
    connector = users.start(wait=False)
    if not splits:
        connector.failed("EventTooLarge")
        # What comes before it is published as far as the server has sent it.
        small = 2 - len(users.published())
        result = plan(users)
        assert (result["case"]["code"], result["missed"], result["undecided"]) == ("EventTooLarge", 2 + small, 0), (
            result
        )
        done = apply(users)
        assert (done["published"], done["dead_letters"]) == (small, 2), done
        users.start()
    last = users.insert("last")
    wait_until(lambda: last in {seen.id for seen in users.published()}, 60, what="the last event")
    assert sorted(seen.id for seen in users.published()) == sorted([before, after, last])
    assert sorted(seen.id for seen in users.dead_lettered()) == sorted(large)
