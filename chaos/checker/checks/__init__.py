"""All checks, in the order of the report."""

from __future__ import annotations

from chaos.checker.checks import (
    availability,
    broker,
    claims,
    classic,
    consumer,
    dumps,
    groups,
    histories,
    hostile,
    kafka,
    log,
    membership,
    producer,
    raft,
    role,
    trace,
)
from chaos.checker.checks.registry import Check
from chaos.checker.completeness import CHECKS as COMPLETENESS

CHECKS: tuple[Check, ...] = (
    *COMPLETENESS,
    *trace.CHECKS,
    *log.CHECKS,
    *producer.CHECKS,
    *raft.CHECKS,
    *membership.CHECKS,
    *role.CHECKS,
    *broker.CHECKS,
    *consumer.CHECKS,
    *groups.CHECKS,
    *claims.CHECKS,
    *dumps.CHECKS,
    *classic.CHECKS,
    *availability.CHECKS,
    *hostile.CHECKS,
    *histories.CHECKS,
    *kafka.CHECKS,
)
