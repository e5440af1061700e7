"""Writes docs/metrics.md from the table of metrics (connector/tailrace/worker/metric_table.py)."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.worker.metric_table import ALIASES, LABEL_VALUES, METRICS, Alias, Metric

HEAD = """\
# Metrics

<!-- Written by `make docs` from connector/tailrace/worker/metric_table.py. Do not edit. -->

`tailrace worker` and `tailrace run --http` serve the metrics of all their pipelines at `/metrics`, as text or as
OpenMetrics if the scraper accepts that. Each pipeline process records its own, about once per batch and never per
event, and sends them to the worker once a second. What that costs is in [benchmarks.md](benchmarks.md#metrics).
Projections have metrics of their own: [projections.md](projections.md). For OpenTelemetry, see
[opentelemetry.md](opentelemetry.md).

All names begin with a prefix, `tailrace_` by default; `--metrics-prefix memoryos_storage` changes it. The tables below
leave it out. Every series has the label `pipeline`; other labels have few values, which are listed at the end. No label
and no value comes from an event.

```yaml
# prometheus.yml
scrape_configs:
  - job_name: tailrace
    static_configs: [{targets: ["localhost:8083"]}]
```

## Questions and queries

| question | query |
|---|---|
| events in total | `outbox_events_published_total` |
| not delivered yet | `outbox_pending_events_count` |
| processing rate | `rate(outbox_events_delivered_total[1m])` |
| lag | `outbox_lag_seconds`, `outbox_lag_bytes`, `outbox_pending_events_count` |
| publish latency, 99th percentile | `histogram_quantile(0.99, rate(outbox_delivery_duration_seconds_bucket[5m]))` |
| where the time goes | `rate(outbox_stage_duration_seconds_sum[5m]) / rate(outbox_stage_duration_seconds_count[5m])` |
| error rate | `rate(outbox_events_failed_total[5m]) / rate(outbox_events_published_total[5m])` |
| is it alive | `time() - pipeline_last_stored_timestamp_seconds`, `pipeline_state{state="RUNNING"}` |
| will the log be lost | `log_lost_in_seconds < 3600` |
| which certificate expires | `certificate_expiry_timestamp_seconds - time() < 14 * 86400` |
"""
NOTES = """\
## How values are found

- **Counters** begin at 0 with each pipeline process; `rate` and `increase` handle that. After the process has ended,
  `/metrics` keeps its counters, and leaves out gauges, which may be wrong by then.
- **Published and delivered.** A service publishes an event when it commits it to the outbox; it is delivered when it is
  committed to Kafka. Both are counted after the commit in Kafka, so a retried batch counts once. An event behind a
  parked key is published at once and delivered when its key is released.
- **Latencies** are measured for the oldest and the newest event of each batch, from the commit time of the database. If
  its clock is ahead of the worker's, they are too short, and never below 0.
- **The probe** asks the servers every ten seconds, in its own sessions and with a limit for every wait. Without an
  answer, `server_up` is 0 and the other values of that server are left out.
- **Pending events.** MongoDB: counted in the change stream after the stored position, up to 10,000 or for two seconds;
  if that takes longer than a second, it is counted less often. Postgres: an estimate, because WAL cannot be counted
  while it is read: rows inserted into the outbox (the server's statistics, some seconds old, with rolled-back rows)
  minus events published, since the pipeline was last at the end of the log. One event per 100 bytes of lag is the most,
  and is used if the process started with a backlog.
- **Lag.** Up to 64 KiB of WAL count as no lag: the server writes that much without any event.
- **The log.** Postgres: `log_retained_bytes` is the WAL since the slot's `restart_lsn`, `log_safe_bytes` the server's
  `safe_wal_size`. MongoDB: both are estimated from the times of the first and last entry of the oplog and of the
  position; they need the right to read it (role `clusterMonitor`, and `read` on `local`).
- **Open dead letters** and parked keys are counted when their topics have grown, up to 10,000 dead letters or for three
  seconds.
- **Validation** is measured for one event of each read.
- **Certificates** are read by a TLS handshake every ten minutes. Postgres: with `sslmode=require` or stricter.

## Names of Debezium and Kafka Connect

Dashboards and alerts for these read the following names, which have no prefix. Debezium's labels are `plugin`
(`postgres` or `mongodb`), `name` (the pipeline) and `context` (`streaming` or `snapshot`). If your dashboard uses
lower-case names, as with Strimzi's exporter settings, add a relabel rule with the action `lowercase` on `__name__`.
"""


def page() -> str:
    tables = [
        ("Events", [each for each in METRICS if each.origin == "pipeline" and not _is_process(each)]),
        ("Lag, log and servers", [each for each in METRICS if each.origin == "probe"]),
        ("Pipeline and process", [each for each in METRICS if each.origin == "worker" or _is_process(each)]),
    ]
    parts = [HEAD.strip()]
    for title, metrics in tables:
        parts += [f"## {title}", _table(metrics)]
    parts += [
        "The worker's own process has the usual names without a prefix: `process_cpu_seconds_total`,\n"
        "`process_resident_memory_bytes`, `process_open_fds`, `process_start_time_seconds`, `python_info`.",
        NOTES.strip(),
        _aliases(ALIASES),
        "## Values of labels",
        _labels(),
    ]
    return "\n\n".join(parts) + "\n"


def _is_process(metric: Metric) -> bool:
    return metric.name.startswith("pipeline_process_")


def _table(metrics: Iterable[Metric]) -> str:
    lines = ["| name | kind | labels | meaning |", "|---|---|---|---|"]
    for each in metrics:
        labels = ", ".join(each.labels[1:])
        when = f" Only if: {each.when.rstrip('.')}." if each.when else ""
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help}{when} |")
    return "\n".join(lines)


def _aliases(aliases: Iterable[Alias]) -> str:
    lines = ["| name | labels | value |", "|---|---|---|"]
    lines += [f"| `{each.name}` | {', '.join(each.labels)} | {each.of} |" for each in aliases]
    return "\n".join(lines)


def _labels() -> str:
    lines = ["| label | values |", "|---|---|"]
    lines += [f"| {label} | {', '.join(values)} |" for label, values in LABEL_VALUES.items()]
    return "\n".join(lines)
