"""The GPU, from `nvidia-smi --query-gpu --format=csv`. On a GB10 several columns read N/A (public reports): those are None."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.facts.raw import Raw, quantity, table

# Bits of clocks_event_reasons.active that mean "slower than asked", from NVML's public header.
SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
    0x4: "power cap",
}


@dataclass(frozen=True)
class App:
    """A process that computes on the GPU. memory: bytes, None where the driver does not say."""

    pid: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """Clocks in MHz, power in watts, temperature in Celsius, utilisation 0 to 1, memory in bytes."""

    name: str | None
    driver: str | None
    vbios: str | None
    sm_mhz: float | None
    max_sm_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    utilisation: float | None
    memory_used_bytes: int | None
    reasons: int | None
    apps: tuple[App, ...]

    @property
    def busy(self) -> bool:
        """Under a load at which clocks can be judged."""
        return self.utilisation is not None and self.utilisation >= 0.5

    @property
    def slowed(self) -> tuple[str, ...]:
        return tuple(words for bit, words in SLOWED.items() if (self.reasons or 0) & bit)


def parse(raw: Raw) -> Gpu | None:
    """The node's first GPU; None when there is none or nvidia-smi does not answer."""
    rows = table(raw.out("gpu"))
    if not rows:
        return None
    row = {_name(name): value for name, value in rows[0].items()}
    percent = quantity(row.get("utilization.gpu"))
    return Gpu(
        row.get("name"), row.get("driver_version"), row.get("vbios_version"), quantity(row.get("clocks.sm")),
        quantity(row.get("clocks.max.sm")), quantity(row.get("power.draw")), quantity(row.get("temperature.gpu")),
        None if percent is None else percent / 100, _mib(row.get("memory.used")), _reasons(raw), _apps(raw),
    )  # fmt: skip


def unknown(raw: Raw) -> bool:
    """Whether nvidia-smi gave no answer in time, or another than was asked for: then there may well be a GPU."""
    return "gpu" in raw.late or "valid field" in (raw.error("gpu") or "")


def _name(column: str) -> str:
    """Its header calls clocks.sm by its full name."""
    return {"clocks.current.sm": "clocks.sm", "power.draw.instant": "power.draw"}.get(column, column)


def _mib(text: str | None) -> int | None:
    amount = quantity(text)
    return None if amount is None else int(amount * (1 << 20))


def _reasons(raw: Raw) -> int | None:
    rows = table(raw.out("gpu-reasons"))
    text = next(iter(rows[0].values()), "") if rows else ""
    try:
        return int(text, 16)
    except ValueError:
        return None


def _apps(raw: Raw) -> tuple[App, ...]:
    rows = [row for row in table(raw.out("gpu-apps")) if row.get("pid", "").isdigit()]
    memory = "used_gpu_memory"
    return tuple(App(int(row["pid"]), row.get("process_name", "?"), _mib(row.get(memory) or row.get("used_memory"))) for row in rows)
