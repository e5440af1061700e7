#!/bin/bash
# Sets up a new database server: the shop with its outbox, the roles of Tailrace and of the projection, and a database
# for the registry. `tailrace outbox ddl` prints the statements for an outbox of your own.
set -euo pipefail

psql -v ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" \
    -v orders_password="$ORDERS_DB_PASSWORD" \
    -v projection_password="$PROJECTION_DB_PASSWORD" \
    -v registry_password="$REGISTRY_DB_PASSWORD" <<'SQL'
CREATE TABLE orders (id text PRIMARY KEY, amount numeric NOT NULL, revision int NOT NULL);
CREATE TABLE outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb,
    traceparent text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The connector: reads the log and the outbox, and writes nothing.
CREATE ROLE tailrace LOGIN REPLICATION PASSWORD :'orders_password';
GRANT SELECT ON outbox TO tailrace;
-- Before the slot, which the connector creates: a slot cannot see a publication that is younger than its position.
CREATE PUBLICATION tailrace_orders FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true);

-- The projection: keeps its tables in a schema of its own.
CREATE ROLE projection LOGIN PASSWORD :'projection_password';
CREATE SCHEMA order_summary AUTHORIZATION projection;

CREATE ROLE registry LOGIN PASSWORD :'registry_password';
CREATE DATABASE registry OWNER registry;
SQL
