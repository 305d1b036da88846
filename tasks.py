"""The task suite's table of contents: `invoke --list`. The tasks themselves live in the packages' tasks.py."""

from invoke import Collection

import cli
from bench import tasks as bench_tasks
from cli import develop
from cluster import tasks as cluster_tasks

cli.adapt_invoke()

receipt = Collection("receipt", bench_tasks.receipt_check, bench_tasks.receipt_schema)

namespace = Collection(
    cluster_tasks.up,
    cluster_tasks.down,
    cluster_tasks.restart,
    cluster_tasks.status,
    cluster_tasks.watch,
    cluster_tasks.plan,
    cluster_tasks.trust,
    cluster_tasks.logs,
    cluster_tasks.config,
    bench_tasks.bench,
    bench_tasks.ask,
    bench_tasks.table,
    bench_tasks.plot,
    develop.demo,
    develop.test,
    develop.testbed,
    develop.lint,
    receipt=receipt,
)
