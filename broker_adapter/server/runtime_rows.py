"""What a broker says of its log and its disk in RocketMQ's table of a broker's runtime (request code 28)."""

from __future__ import annotations

from typing import Final, NamedTuple

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: RocketMQ's answer where nothing was measured, or there is no such thing.
_NOTHING: Final = {
    "putMessageDistributeTime": "null",
    "getMissTps": "0.0 0.0 0.0",
    "putMessageEntireTimeMax": "0",
    "getMessageEntireTimeMax": "0",
    "earliestMessageTimeStamp": "-1",
    "dispatchMaxBuffer": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
}


class LogFacts(NamedTuple):
    """Positions and sizes in bytes. `sync_ms`: how long the sync under way has taken."""

    begin_pos: int
    end_pos: int
    pending: int
    behind: int
    disk_total: int
    disk_free: int
    sync_ms: int
    uptime_ms: int


def runtime_rows(facts: LogFacts) -> dict[str, str]:
    """Rows that monitoring of RocketMQ reads, the names and the forms of numbers being RocketMQ's."""
    used = 1 - facts.disk_free / facts.disk_total if facts.disk_total else 0.0
    total, free = _readable(facts.disk_total), _readable(facts.disk_free)
    return {
        **_NOTHING,
        "commitLogMinOffset": str(facts.begin_pos),
        "commitLogMaxOffset": str(facts.end_pos),
        "dispatchBehindBytes": str(facts.behind),
        "remainHowManyDataToFlush": f"{facts.pending} B",
        "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
        "commitLogDiskRatio": str(used),
        "consumeQueueDiskRatio": str(used),
        "pageCacheLockTimeMills": str(facts.sync_ms),
        "runtime": _duration(facts.uptime_ms // 1000),
    }


def _readable(size: int) -> str:
    """One digit behind the point, a space, the unit, as RocketMQ's own."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}"


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
