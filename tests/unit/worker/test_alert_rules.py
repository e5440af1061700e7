"""When an alert is raised, and that it is raised once."""

from __future__ import annotations

from tailrace.worker.alert_rules import OUTAGE_SECONDS, Leak, LeakRule, LogDangerRule, RecoveryRule


class TestLeak:
    def test_a_few_dead_letters_again_and_again(self) -> None:
        rule = LeakRule(120, parts=12, leaking=6)
        found = [rule.look(now, total) for now, total in zip(range(0, 130, 10), range(13), strict=True)]
        leaks = [each for each in found if each is not None]
        assert leaks == [Leak(6, 60.0)]

    def test_one_burst_is_no_leak(self) -> None:
        rule = LeakRule(120, parts=12, leaking=6)
        assert not any(rule.look(now, 5000 if now > 20 else 0) for now in range(0, 1000, 10))

    def test_alerts_again_after_it_had_stopped(self) -> None:
        rule, total, leaks = LeakRule(120, parts=12, leaking=6), 0, 0
        for now in range(0, 1000, 10):
            total += 0 if 300 < now < 600 else 1
            leaks += rule.look(now, total) is not None
        assert leaks == 2

    def test_a_restarted_process_counts_from_zero(self) -> None:
        rule = LeakRule(120, parts=12, leaking=6)
        assert rule.look(0, 100) is None
        assert rule.look(10, 3) is None
        assert rule.look(20, 3) is None


class TestLogDanger:
    def test_the_forecast(self) -> None:
        rule = LogDangerRule(3600)
        assert rule.look(4000, None, None) is None
        danger = rule.look(600, None, None)
        assert danger is not None
        assert "600 s" in danger.what
        assert rule.look(500, None, None) is None  # only once
        assert rule.look(3700, None, None) is None  # not far enough away from the bound
        assert rule.look(500, None, None) is None
        assert rule.look(6000, None, None) is None
        assert rule.look(500, None, None) is not None

    def test_little_is_left_of_the_limit(self) -> None:
        assert LogDangerRule().look(None, 50, 100) is None
        danger = LogDangerRule().look(None, 10, 100)
        assert danger is not None
        assert "10%" in danger.what

    def test_the_log_is_lost(self) -> None:
        assert LogDangerRule().look(0.0, None, None, lost=True) is not None

    def test_nothing_is_known(self) -> None:
        assert LogDangerRule().look(None, None, None) is None


class TestRecovery:
    def test_the_first_start_is_none(self) -> None:
        assert not RecoveryRule().started(0)

    def test_after_a_failure_of_an_earlier_process(self) -> None:
        rule = RecoveryRule()
        rule.failed_before("PipelineStalled")
        assert "PipelineStalled" in rule.started(0)
        assert not rule.started(1)

    def test_only_after_a_long_outage(self) -> None:
        rule = RecoveryRule()
        rule.interrupted("KafkaUnavailable", 0)
        assert not rule.started(OUTAGE_SECONDS - 1)
        rule.interrupted("KafkaUnavailable", 100)
        rule.interrupted("SourceUnavailable", 150)
        assert f"{OUTAGE_SECONDS:.0f} s of SourceUnavailable" in rule.started(100 + OUTAGE_SECONDS)

    def test_after_the_loss_of_the_log(self) -> None:
        rule = RecoveryRule()
        rule.log_recovered()
        assert "published from the outbox" in rule.started(0)
