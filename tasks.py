"""The task suite's table of contents: `invoke --list`. The tasks themselves live in the packages' tasks.py."""

from invoke import Collection

import cli
from ablit import tasks as ablit_tasks
from bench import tasks as bench_tasks
from bench.compare import tasks as compare_tasks
from bench.kinds import tasks as receipt_tasks
from bench.kld import tasks as kld_tasks
from bench.report import tasks as report_tasks
from bench.why_slow import tasks as why_slow_tasks
from cli import develop, notebooks
from cluster import tasks as cluster_tasks
from cluster.budget import tasks as budget_tasks
from cluster.doctor import tasks as doctor_tasks
from cluster.images import tasks as image_tasks
from cluster.weights import tasks as weights_tasks

cli.adapt_invoke()

receipt = Collection(
    "receipt",
    receipt_tasks.receipt_check,
    receipt_tasks.receipt_markdown,
    receipt_tasks.receipt_migrate,
    receipt_tasks.receipt_import,
    bench_tasks.receipt_schema,
)
kld = Collection("kld", kld_tasks.capture, kld_tasks.score)

namespace = Collection(
    cluster_tasks.up,
    cluster_tasks.down,
    cluster_tasks.restart,
    cluster_tasks.status,
    cluster_tasks.watch,
    cluster_tasks.plan,
    cluster_tasks.trust,
    doctor_tasks.doctor,
    cluster_tasks.logs,
    cluster_tasks.config,
    budget_tasks.budget,
    weights_tasks.download,
    weights_tasks.verify,
    weights_tasks.resync,
    image_tasks.build,
    image_tasks.pull,
    image_tasks.ship,
    bench_tasks.bench,
    bench_tasks.export,
    compare_tasks.compare,
    compare_tasks.bench_plan,
    compare_tasks.bench_run,
    why_slow_tasks.why_slow,
    bench_tasks.ask,
    bench_tasks.table,
    bench_tasks.plot,
    report_tasks.report,
    develop.demo,
    develop.test,
    develop.testbed,
    develop.lint,
    notebooks.notebooks,
    notebooks.jupyter,
    receipt=receipt,
    ablit=Collection("ablit", ablit_tasks.direction, ablit_tasks.evaluate, ablit_tasks.sweep),
    kld=kld,
)
