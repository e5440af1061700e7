"""Business rules: checks that a user writes, run on events by type, by the writer and by the connector alike."""

from tailrace.rules.rule import Rule, RuleEvent, RuleSet

__all__ = ["Rule", "RuleEvent", "RuleSet"]
